"""Numbers of things, as people say them, and what is quoted at a bounded length."""

from pathlib import Path

import numpy as np
import pytest

from pslib.errors import PROBLEMS_MAX, ConfigurationError, ProtocolError, PslibError
from pslib.text import LINE_CHARS, QUOTED_CHARS, counted, cut, json_value, listed, quoted


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


@pytest.mark.parametrize("error", [ConfigurationError, ProtocolError])
def test_an_error_that_quotes_anything_is_a_printable_line_with_its_beginning_and_its_end(
    error: type[PslibError],
) -> None:
    line = str(error(f"a.parquet: got \x1b[2J{'x' * 99_999}\u202e\udcff; write it anew"))
    assert (len(line), line.isprintable()) == (LINE_CHARS, True)
    assert line.startswith("a.parquet: got \\x1b[2Jxx")
    assert line.endswith("xx\\u202e\\udcff; write it anew")
    assert " characters) ..." in line


def test_a_problem_is_one_line_and_an_error_holds_so_many() -> None:
    error = ConfigurationError(*(f"line {i}\nof it" for i in range(PROBLEMS_MAX + 7)))
    assert error.problems == (*(f"line {i}\\nof it" for i in range(PROBLEMS_MAX)), "... and 7 more problems")
    assert str(error).splitlines() == list(error.problems)


def test_values_and_names_are_quoted_at_a_bounded_length() -> None:
    assert len(quoted("x" * 10**6)) == len(quoted(10**999)) == QUOTED_CHARS
    assert quoted("a\nb") == "'a\\nb'"
    assert (
        listed(["a", "b\t", "c" * 999, "d", "e"]) == f"a, b\\t, {cut('c' * 999, QUOTED_CHARS)} and 2 others"
    )
    assert listed(["a", "b"]) == "a, b"
    assert cut("x" * LINE_CHARS) == "x" * LINE_CHARS


def test_values_for_json_have_no_nan_and_no_types_of_numpy() -> None:
    given = {1: (np.float32("nan"), np.int64(2), np.bool_(True)), "b": {"c": float("inf"), "d": Path("x")}}
    assert json_value(given | {"e": np.array([1.5, np.inf])}) == {
        "1": [None, 2, True],
        "b": {"c": None, "d": "x"},
        "e": [1.5, None],
    }
    assert type(json_value(np.float64(1.5))) is float
