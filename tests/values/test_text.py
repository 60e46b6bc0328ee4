"""Numbers of things, as people say them."""

import pytest

from pslib.text import counted


@pytest.mark.parametrize(
    ("count", "nouns", "said"),
    [
        (0, ("row",), "0 rows"),
        (1, ("row",), "1 row"),
        (1_500_000, ("row",), "1,500,000 rows"),
        (1, ("push", "pushes"), "1 push"),
        (2, ("push", "pushes"), "2 pushes"),
        (1, ("server has", "servers have"), "1 server has"),
    ],
)
def test_one_is_not_many(count: int, nouns: tuple[str, ...], said: str) -> None:
    assert counted(count, *nouns) == said
