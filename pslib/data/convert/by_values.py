r"""Text to Parquet without a schema: the type of each column by all of its values.

A column is of the first type that all of its values are of; an empty one, and ``\N``, is missing::

    int64        7, -7: written as Python writes it, so that its text is known from the number
    float64      0.5, 1e-3, inf; one has a point (12e5 may be an id); nan, NA ... (`MISSING`) are missing;
                 0,5 too, where a semicolon divides the values
    bool         true, false, in any case
    date32       2024-05-01
    timestamp    2024-05-01 12:30, also with T, seconds and a fraction; in UTC if each has a zone
    string       any: 007, +7 and A12 are ids as they are written
    null         nothing at all

JSON has types of its own; of its strings only dates and times become others. Lists are those of integers or
of strings. A column that has none of these types (objects, say), or no name, is left out.

CSV is read twice: for the types, and to convert it. JSON lines are read once more before, for their columns.
The table depends on nothing but the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pslib.data.column_casts import LEFT_OUT, NO_NUMBER, NO_TIME, NUMBERS, integers_in, numbers_in
from pslib.data.convert.csv_criteo import csv_parser
from pslib.data.convert.csv_header import delimiter_of, header_of
from pslib.data.convert.job import Conversion, ConvertReport
from pslib.data.convert.json_lines import json_kinds, json_parser
from pslib.data.convert.records import Parsed, Parser, Piece, Rejects, parse_piece, pieces
from pslib.data.text_values import COMMA, COMMA_DELIMITER, INFINITE, WHOLE
from pslib.errors import DataError
from pslib.text import quoted

VERSION = 3
"""Version of these rules: under another the same text may give another table."""
GROUP_ROWS, GROUP_BYTES = 1 << 20, 128 << 20
"""Rows of a row group, as of a table in memory, so that both are trained in one order; or bytes, if fewer."""

FEW = 64
_EXACT = 2**53
_WHOLE, _INFINITE = f"^(?:{WHOLE})$", f"^(?:{INFINITE})$"


def _integers(texts: pa.Array) -> pa.Array:
    numbers = texts.cast(pa.int64())
    if not numbers.cast(pa.string()).equals(texts):
        raise pa.ArrowInvalid("not an integer as it is written in one way alone")
    return numbers


def _numbers(texts: pa.Array) -> pa.Array:
    """Numbers, none of which changes: no whole one from 2^53 on, no fraction beyond float64."""
    numbers = numbers_in(texts)
    large = texts.filter(pc.greater_equal(pc.abs(numbers), _EXACT))
    if pc.any(pc.match_substring_regex(large, _WHOLE)).as_py():
        raise pa.ArrowInvalid("a whole number that float64 does not hold")
    if pc.match_substring_regex(texts.filter(pc.is_inf(numbers)), _INFINITE).false_count:
        raise pa.ArrowInvalid("a number beyond float64")
    return numbers


def _fractions(texts: pa.Array) -> pa.Array:
    """Numbers, of which the whole ones are written as integers are: 007 is an id, also beside 0.5."""
    numbers = _numbers(texts)
    whole = texts.filter(pc.equal(numbers, pc.floor(numbers)))
    if integers_in(whole.filter(pc.match_substring_regex(whole, _WHOLE))).false_count:
        raise pa.ArrowInvalid("a whole number that is not written as an integer")
    return numbers


def _truths(texts: pa.Array) -> pa.Array:
    place = pc.index_in(pc.ascii_lower(texts), pa.array(["false", "true"]))
    if place.null_count != texts.null_count:
        raise pa.ArrowInvalid("no truth value")
    return place.cast(pa.bool_())


_CASTS: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    "integer": _integers,
    "fraction": _fractions,
    "truth": _truths,
    "date": lambda texts: texts.cast(pa.date32()),
    "time": lambda texts: texts.cast(pa.timestamp("us")),
    "zoned": lambda texts: texts.cast(pa.timestamp("us", "UTC")),
    "number": _numbers,
}
"""Kinds of values and their casts, in the order of choice.

A column of numbers with 007 or NA among them is of the last kind alone: it stays text, for its ids, and is
marked as `NUMBERS`, for a field of numbers.
"""
_NUMERIC = ("integer", "fraction", "number")
"""Kinds of which small integers are too."""
_OF_JSON = ("date", "time", "zoned", "number")
"""Kinds of the strings of JSON."""
_MARKS = {NO_NUMBER: ("number",), NO_TIME: ("time", "zoned")}
"""Metadata that names the first value which leaves a column none of some kinds."""


class ColumnValues:
    """Kinds of all values of a column so far.

    Parameters
    ----------
    kinds : iterable of str
        Those that it may have.
    commas : bool
        Whether 1,5 is a number.
    """

    def __init__(self, kinds: Iterable[str], *, commas: bool = False) -> None:
        self.kinds, self._commas = list(kinds), commas
        self._rows = 0
        self._any = self._empty = self._fractions = False
        self._others: dict[bytes, str] = {}

    def look(self, values: pa.Array) -> None:
        """Drop the kinds that these values are not all of."""
        given = self._dotted(_given(values))
        self._any = self._any or len(given) > 0
        self._empty = self._empty or len(given) + values.null_count < len(values)
        if len(given):  # a piece without any value fits all kinds
            self.kinds = self._kinds_of(given)
            self._mark(self._dotted(values))
        if "fraction" in self.kinds and not self._fractions:
            self._fractions = bool(pc.any(pc.match_substring(given, "."), min_count=0).as_py())
        self._rows += len(values)

    def _mark(self, values: pa.Array) -> None:
        """Keep the first value that leaves the column none of some kinds."""
        for mark, kinds in _MARKS.items():
            if mark not in self._others and not {*kinds} & {*self.kinds}:
                row = _first_other(kinds, values)
                self._others[mark] = f"{quoted(values[row].as_py())} in row {self._rows + row} (from 0)"

    def _kinds_of(self, given: pa.Array) -> list[str]:
        """Return the kinds that these values have too, of those that the earlier ones have."""
        if "integer" in self.kinds and _fits("integer", given):
            span = pc.min_max(given.cast(pa.int64())).values()
            exact = all(abs(end.as_py() or 0) < _EXACT for end in span)
            return [kind for kind in self.kinds if kind == "integer" or (exact and kind in _NUMERIC)]
        return [kind for kind in self.kinds if kind != "integer" and _fits(kind, given)]

    def typed(self, texts: pa.Array) -> pa.Array:
        """Cast values of the column to its type."""
        kind = self._kind()
        if kind:
            return _CASTS[kind](self._dotted(pc.if_else(pc.equal(texts, ""), None, texts)))
        return texts if self._any or self._empty else pa.nulls(len(texts))

    def field(self, name: str) -> pa.Field:
        """Return name and type, and what messages say of a column of text."""
        kind = self.typed(pa.array([], pa.string())).type
        marks = {}
        if not self._kind():
            marks = {NUMBERS: ""} if "number" in self.kinds and not self._commas else self._others
        return pa.field(name, kind, metadata=marks or None)

    def _dotted(self, texts: pa.Array) -> pa.Array:
        """Return texts with a decimal point in place of a decimal comma."""
        if not self._commas:
            return texts
        return pc.replace_substring_regex(texts, f"^{COMMA}$", r"\1.\2")

    def _kind(self) -> str:
        """Return the kind that is taken; empty for text, or without any value."""
        kinds = [kind for kind in self.kinds if kind != "number" and (kind != "fraction" or self._fractions)]
        return kinds[0] if kinds and self._any else ""


def _given(values: pa.Array) -> pa.Array:
    """Values that are there."""
    return values.filter(pc.not_equal(values, ""))


def _fits(kind: str, given: pa.Array) -> bool:
    try:
        _CASTS[kind](given.slice(0, FEW))  # casts that fail take ten times as long, a message for each value
        _CASTS[kind](given)
    except pa.ArrowInvalid:
        return False
    return True


def _first_other(kinds: Iterable[str], values: pa.Array) -> int:
    """Return the first value that is of none of some kinds, by halves."""
    first, rows = 0, len(values)
    while rows > 1:
        half = rows // 2
        given = _given(values.slice(first, half))
        if any(_fits(kind, given) for kind in kinds):
            first, rows = first + half, rows - half
        else:
            rows = half
    return first


class _Csv:
    """A CSV file: its columns, and parsers of its records."""

    kinds = tuple(_CASTS)

    def __init__(self, source: Path, delimiter: str | None, names: Sequence[str] | None) -> None:
        self._source, self._delimiter = source, delimiter or delimiter_of(source)
        self._names, self.commas = names, self._delimiter == COMMA_DELIMITER
        names = self._opened()[0]
        self.columns = {name: pa.string() for name in names if name}
        if not self.columns:
            raise DataError(f"{source}: expected names of columns in the first line, got none")
        # Names have no blanks around them: one of the parser for a column without a name is no other's.
        self._all = {name or f" {place}": pa.string() for place, name in enumerate(names, 1)}
        self.left_out: dict[str, str] = {}
        if places := [str(place) for place, name in enumerate(names, 1) if not name]:
            self.left_out[""] = f"expected a name in the header, got none in place {', '.join(places)}"

    def records(self) -> tuple[Iterator[Piece], int]:
        """Return the pieces after the header, and the number of lines before them."""
        return self._opened()[1:]

    def _opened(self) -> tuple[list[str], Iterator[Piece], int]:
        found = pieces(self._source, quoted_by=self._delimiter.encode())
        first = next(found)
        names, body = header_of(first, self._delimiter, self._source, names=self._names, nameless=True)
        return names, chain([body] if body.lines else [], found), first.lines - body.lines

    def parser(self) -> Parser:
        """Return the parser of records to texts."""
        parse = csv_parser(self._all, None, self._delimiter, quotes=True)

        def parse_named(raw: bytes) -> Parsed:
            parsed = parse(raw)
            return Parsed(parsed.table.select(list(self.columns)), parsed.bad)

        return parse_named


class _JsonLines:
    """A file of JSON lines: its columns, and parsers of its records."""

    kinds, commas = _OF_JSON, False

    def __init__(self, run: Conversion) -> None:
        self._source = run.source
        texts = (text for piece in _reported(run, *self.records()) for _, text in piece.split())
        self.columns, self.left_out, _ = json_kinds(texts)
        if not self.columns:
            raise DataError(f"{run.source}: expected a JSON object with values a line, found none")

    def records(self) -> tuple[Iterator[Piece], int]:
        """Return the pieces, and no line before them."""
        return pieces(self._source), 0

    def parser(self) -> Parser:
        """Return the parser of records to the types of JSON."""
        return json_parser(self.columns, None)


def convert_by_values(
    run: Conversion,
    form: str,
    *,
    delimiter: str | None = None,
    names: Sequence[str] | None = None,
    texts: Collection[str] = (),
    may_be_empty: bool = False,
) -> ConvertReport:
    """Convert a file of text with all of its columns.

    Parameters
    ----------
    run : Conversion
    form : str
        ``"csv"`` or ``"jsonl"``.
    delimiter : str or None
        Of CSV; None: that of `DELIMITERS` which the header has most often.
    names : sequence of str or None
        Names of the columns of CSV without a header.
    texts : collection of str
        Columns of texts that stay as they are written.
    may_be_empty : bool
        Write a file without rows for a header alone.

    Raises
    ------
    DataError
        If the source can't be read, or too many records are bad.
    """
    text = _Csv(run.source, delimiter, names) if form == "csv" else _JsonLines(run)
    if unknown := [name for name in texts if name not in text.columns]:
        raise DataError(f"{run.source}: no column {unknown[0]!r}; there is {', '.join(text.columns)}")
    columns = {
        name: ColumnValues(() if name in texts else text.kinds, commas=text.commas)
        for name, kind in text.columns.items()
        if kind == pa.string()
    }
    for name, values in _first_pass(run, text):
        columns[name].look(values)
    fields = [
        columns[name].field(name) if name in columns else pa.field(name, kind)
        for name, kind in text.columns.items()
    ]
    schema = pa.schema(fields, {LEFT_OUT: json.dumps(text.left_out)} if text.left_out else None)
    found, before = text.records()
    return run.over(
        found,
        _typed(text.parser(), columns, schema),
        None,
        lines_before=before,
        notes=lambda: [f"column {name!r} is left out: {why}" for name, why in text.left_out.items()],
        empty=schema.empty_table() if may_be_empty else None,
        group=(GROUP_ROWS, GROUP_BYTES),
    )


def _first_pass(run: Conversion, text: _Csv | _JsonLines) -> Iterator[tuple[str, pa.Array]]:
    """Yield the values of all columns of texts, piece by piece; the second pass counts bad records."""
    names = [name for name, kind in text.columns.items() if kind == pa.string()]
    passed_over, parse = Rejects(Path(os.devnull), str(run.source), 1.0), text.parser()
    with closing(passed_over):
        for piece in _reported(run, *text.records()) if names else ():
            for table in parse_piece(piece, parse, passed_over)[0]:
                yield from ((name, table.column(name).combine_chunks()) for name in names)


def _reported(run: Conversion, found: Iterable[Piece], lines: int) -> Iterator[Piece]:
    """Yield the pieces after some lines, and report after each how many were read."""
    for piece in found:
        yield piece
        lines += piece.lines
        run.report_lines(lines)


def _typed(parse: Parser, columns: Mapping[str, ColumnValues], schema: pa.Schema) -> Parser:
    """Parser to typed columns of one to texts."""

    def parse_typed(raw: bytes) -> Parsed:
        parsed = parse(raw)
        named = zip(parsed.table.column_names, parsed.table.columns, strict=True)
        found = [columns[name].typed(one.combine_chunks()) if name in columns else one for name, one in named]
        return Parsed(pa.table(found, schema), parsed.bad)

    return parse_typed
