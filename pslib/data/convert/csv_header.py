"""Header of a CSV file: its delimiter and the names of its columns, and whether it is a record instead.

The first line is a record if one of its values is like the column below it, and none is another than it:

- like it: a number among numbers and near them, a time among times, a text that comes again in the column,
  a text with digits of the one form that all have (``u472`` above ``u312``, a hash above hashes);
- another: a word above numbers or times, a text without the one form that all texts have, a word above texts
  that all come again.

So one plain name decides for a header: ``user,2024,2025`` is one, also above numbers. ``0,1,2`` is one too,
which pandas writes for columns without names, and so is ``1,2,3`` above texts.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from pslib.data.convert.records import Piece, pieces
from pslib.data.text_values import ALMOST, INFINITE, MISSING, NULLS, NUMBER, TEXT_KINDS, matches
from pslib.errors import ConfigurationError, DataError
from pslib.text import cut

DELIMITERS = ",\t;|"
"""Delimiters of values in a CSV file: the one that its first line has most often."""
LOOKED_AT_ROWS, LOOKED_AT_CELLS = 1_000, 100_000
"""Most records, and cells, that the first line is compared with; at least `LEAST_ROWS` of a wide file."""
LEAST_ROWS = 50
ONCE_SHARE = 0.02
"""Share of a column's cells that occur once, below which a text that is not among them is no value of it: of
rows that are drawn alike about that share would be new to the others (Good, 1953)."""
PLACES_MIN = 3
"""Fewest names that are taken for numbers of places, as pandas writes them: ``0,1`` may be a record."""
SHOWN_CHARS = 60


def delimiter_of(source: Path) -> str:
    """Return the delimiter of a CSV file, by its first line.

    Raises
    ------
    DataError
        If the file is empty, or can't be read.
    """
    if (first := next(pieces(source), None)) is None:
        raise DataError(f"{source}: expected a header and rows, got an empty file")
    line = next((line for line in first.raw.split(b"\n") if line.strip()), b"").decode(errors="replace")
    return max(DELIMITERS, key=line.count)


def header_of(
    piece: Piece,
    delimiter: str,
    source: Path,
    *,
    names: Sequence[str] | None = None,
    nameless: bool = False,
) -> tuple[list[str], Piece]:
    """Names of the columns, and the piece without the header.

    Parameters
    ----------
    piece : Piece
        The first of the file.
    delimiter : str
    source : Path
        For messages.
    names : sequence of str or None
        Names of the columns of a file without a header; None: its first line has them.
    nameless : bool
        True if columns may have no name, which is "" then.

    Raises
    ------
    ConfigurationError
        If the given names are not as many as the columns.
    DataError
        If it can't be read, is a record, or a column name is empty or repeated; lists all problems at once.
    """
    records = piece.split()
    if not records:
        raise DataError(f"{source}: expected a header, got blank lines")
    line, text = records[0]
    try:
        found = next(csv.reader([text.decode().rstrip("\r")], delimiter=delimiter, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        bare = b"\r" in text.rstrip(b"\r") and b'"' not in text
        why = "its lines end with CR alone; rewrite it with LF, as by tr" if bare else error
        raise DataError(f"{source}: line {line}: expected a header, can't read it: {why}") from error
    if names is not None:
        return _given(names, found, line), piece
    found = [name.strip() for name in found]
    rows = list(_rows(records[1:], len(found), delimiter))
    if 2 * sum(len(row) == len(found) + 1 and not row[-1] for row in rows) > len(rows):
        found.append("")  # a delimiter at the end of each record, but of none in the header
    # Files that were put one behind the other have the header inside, too.
    if _is_record(found, [row for row in rows if len(row) == len(found) and row != found]):
        record = cut(delimiter.join(found), SHOWN_CHARS)
        raise DataError(
            f"{source}: line {line}: expected names of columns, got a record like those below it: "
            f"{record!r}; write a line of names above it, or give names: pslib convert csv --no-label "
            "--columns A,B,... SRC OUT (if these are the names, make one a word)"
        )
    twice = sorted({name for name in found if name and found.count(name) > 1})
    problems = [
        f"{source}: line {line}: column {name!r} is named {found.count(name)} times; rename all but one"
        for name in twice
    ]
    problems += [
        f"{source}: line {line}: column {place + 1} has no name; write one into the header"
        for place, name in enumerate(found)
        if not name and not nameless
    ]
    if problems:
        raise DataError(*problems)
    skipped = line + text.count(b"\n") - piece.first_line + 1
    raw = piece.raw
    for _ in range(skipped):
        raw = raw[raw.index(b"\n") + 1 :]
    rest = records[1:] if piece.records is not None else None
    broken = [record for record in piece.broken if record.line > line]
    return found, Piece(raw, piece.first_line + skipped, piece.lines - skipped, rest, broken)


def _given(names: Sequence[str], first: Sequence[str], line: int) -> list[str]:
    """Names that are given for the columns of a file, if they are as many as the values of a record."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"columns: {twice[0]!r} is named {names.count(twice[0])} times")
    if len(names) != len(first):
        raise ConfigurationError(
            f"columns: expected {len(first)} names, as line {line} has {len(first)} values, got {len(names)}"
        )
    return list(names)


def _rows(records: Sequence[tuple[int, bytes]], columns: int, delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of the first records."""
    most = max(LEAST_ROWS, min(LOOKED_AT_ROWS, LOOKED_AT_CELLS // columns))
    some = (text.decode(errors="replace").rstrip("\r") for _, text in islice(records, most))
    with suppress(csv.Error):  # the rows before it decide; the conversion itself reports the fault
        for row in csv.reader(some, delimiter=delimiter):
            yield [cell.strip() for cell in row]


def _is_record(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first line is a record like those below it."""
    plain = [name for name in names if name]
    are_places = plain in ([str(n + first) for n in range(len(plain))] for first in (0, 1))
    if are_places and (len(names) >= PLACES_MIN or not names[0]):
        return False
    columns = zip(names, zip(*rows, strict=True), strict=False)
    is_like = False
    for name, cells in columns:
        vote = _likeness(name, [cell for cell in cells if not _is_missing(cell)])
        if vote < 0:
            return False
        is_like = is_like or vote > 0
    return is_like


def _likeness(name: str, cells: Sequence[str]) -> int:
    """Return 1 if a name is like the values of its column, -1 if it is another than they are, or else 0."""
    if not cells or _is_missing(name):
        return 0
    kind, form = _common(_kind, cells), _common(_form, cells)
    if kind:
        return _is_near(name, cells) if kind == _kind(name) else -1
    if name in cells:
        return 1
    if form and _kind(name) == "":
        return 1 if _form(name) == form else -1
    counts = Counter(cells)
    once = sum(count == 1 for count in counts.values())
    return -1 if _kind(name) == "" and once < ONCE_SHARE * len(cells) else 0


def _is_missing(cell: str) -> bool:
    return cell in NULLS or cell in MISSING


def _kind(cell: str) -> str:
    """Kind of a value that a header has seldom: a number or a time; empty for another."""
    if matches(NUMBER, cell) or matches(INFINITE, cell) or matches(ALMOST, cell):
        return "number"
    return "time" if matches(TEXT_KINDS["time"], cell) else ""


def _form(cell: str) -> str:
    """Form of a text with digits, its runs of letters and of digits as one each; of a hash its length."""
    if not re.search(r"\d", cell):
        return ""
    if matches(r"[0-9a-fA-F-]{8,}", cell):
        return f"hash of {len(cell)}"
    return re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", cell))


def _common(look: Callable[[str], str], cells: Sequence[str]) -> str:
    """Return what all cells have in common; empty if nothing."""
    first = look(cells[0])
    return first if first and all(look(cell) == first for cell in cells) else ""


def _is_near(name: str, cells: Sequence[str]) -> int:
    """Return 1 if a number is in the range of others or as far from it again, else 0: a year above counts."""
    try:
        numbers, number = list(map(float, cells)), float(name)
    except ValueError:  # times, and numbers as 1,5 or 7 %
        return 1
    low, high = min(numbers), max(numbers)
    reach = max(abs(low), abs(high))
    return int(low - reach <= number <= high + reach)
