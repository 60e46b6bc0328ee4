"""Each row of docs/design/failures.md names a test that there is, and a scenario that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "design" / "failures.md"
SIMULATED = [*TESTS.glob("simulation/**/*.py")]
CODE = "\n".join(path.read_text(encoding="utf-8") for path in SIMULATED)


def rows() -> list[list[str]]:
    """Cells of all rows of tables that end in a test and a scenario."""
    found, inside = [], False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        inside = line.startswith("|") and (inside or cells[-2:] == ["test", "simulated"])
        if inside and cells[-1] != "simulated" and set(cells[0]) != {"-"}:
            found.append(cells)
    return found


ROWS = rows()


def test_the_tables_are_found() -> None:
    assert len(ROWS) > 35


@pytest.mark.parametrize("cells", ROWS, ids=[" / ".join(cells[:2])[:60] for cells in ROWS])
def test_a_row_names_its_test_and_its_scenario(cells: list[str]) -> None:
    tests, scenarios = (re.findall(r"`([\w/]+(?:\.py)?)`", cell) for cell in cells[-2:])
    tests = [name for name in tests if name.endswith(".py")]
    assert tests, "no test"
    assert all((TESTS / name).exists() for name in tests), tests
    names = [name for name in scenarios if name not in ("sync",)]
    assert names, "no scenario"
    for name in names:
        assert re.search(rf"(def|class) {name}\b", CODE), name
