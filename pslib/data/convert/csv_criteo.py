"""Parsers for text formats: bytes of complete records to an Arrow table with an int8 label."""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from pslib.data.convert.records import Parsed, Parser, Piece
from pslib.data.text_values import (
    ALMOST,
    COMMA,
    COMMA_DELIMITER,
    INFINITE,
    MISSING,
    NULLS,
    NUMBER,
    WHOLE,
    WHOLE_FLOAT,
    matches,
)
from pslib.errors import DataError
from pslib.schema import DenseField, Schema

CRITEO_LABEL = "label"
CRITEO_DENSE = tuple(f"I{number}" for number in range(1, 14))
CRITEO_SPARSE = tuple(f"C{number}" for number in range(1, 27))


def criteo_schema() -> Schema:
    """Schema: label, I1..I13 as log(1 + x) with 0 for a missing count, C1..C26 as one key each."""
    return Schema(
        label=CRITEO_LABEL,
        dense=[DenseField(name, log1p=True) for name in CRITEO_DENSE],
        sparse=CRITEO_SPARSE,
    )


# Accepted label texts in all formats. Any other text, also an empty one, is a reject.
LABELS = {"0": 0, "1": 1, "-1": 0, "+1": 1, "0.0": 0, "1.0": 1, "-1.0": 0, "+1.0": 1, "false": 0, "true": 1}

_POINT = r"\s*[+-]?\d+\.\d+\s*"
_POINTED = pa.decimal128(38, 9)
SAMPLE_ROWS = 10_000  # inspected to tell numbers with fractions from names


class OtherValues(Exception):  # noqa: N818 - a turn of the road, not an error
    """Raised for a value other than 1 where only 1 is expected."""


def labelled(table: Any, label: str, positive: Sequence[str] | None = None) -> Parsed:
    """Convert label text to int8; an invalid label makes its row bad.

    Parameters
    ----------
    table : pyarrow.Table
    label : str
        Its column of texts.
    positive : sequence of str or None
        Texts that count as 1, where each other one counts as 0; None: `LABELS`.
    """
    place = table.schema.get_field_index(label)
    text = table.column(place)
    plain = pc.ascii_trim_whitespace(text)
    if positive is None:
        code = pc.index_in(pc.ascii_lower(plain), pa.array(list(LABELS)))
        numbers, expected = pc.take(pa.array(list(LABELS.values()), pa.int8()), code), "0 or 1"
    else:
        is_given = pc.and_kleene(plain.is_valid(), pc.not_equal(plain, ""))
        is_positive = pc.is_in(plain, pa.array(positive, plain.type))
        numbers, expected = pc.if_else(is_given, is_positive.cast(pa.int8()), None), "a value"
    bad = []
    if numbers.null_count:
        rows = pc.indices_nonzero(pc.is_null(numbers)).to_pylist()
        bad = [
            (row, f"column {label!r}: expected {expected}, got {text[row].as_py() or ''!r}") for row in rows
        ]
    return Parsed(table.set_column(place, pa.field(label, pa.int8(), nullable=False), numbers), bad)


def no_other_numbers(
    parsed: Parsed, wholes_of: Callable[[str], Any], text_of: Callable[[str, int], str]
) -> Parsed:
    """Add rows with numbers that float64 can't represent to the bad rows.

    These are integers beyond 2^53 that float64 rounds, and numbers that overflow to infinity. Fractions take
    the nearest value.

    Parameters
    ----------
    parsed : Parsed
    wholes_of : callable
        Maps a column with such large values to int64; raises ArrowInvalid if one is not an int64.
    text_of : callable
        Maps a column and a row to the number's text in the file; called if the number is not an int64.
    """
    bad = dict[int, str]()
    for name, column in zip(parsed.table.column_names, parsed.table.columns, strict=True):
        if column.type != pa.float64():
            continue
        large = pc.greater_equal(pc.abs(column), 2.0**53)
        if not pc.any(large).as_py():
            continue
        with suppress(pa.ArrowInvalid):  # times in ns, say, which are all integers
            large = pc.and_(large, pc.not_equal(column.cast(pa.int64(), safe=False), wholes_of(name)))
        for row in pc.indices_nonzero(large).to_pylist():
            text, value = text_of(name, row), column[row].as_py()
            if math.isinf(value):
                same = "inf" in text.lower()
            else:
                same = not matches(WHOLE, text) or int(text) == value
            if not same:
                bad[row] = f"column {name!r}: expected a number that float64 holds, got {text.strip()}"
    return Parsed(parsed.table, sorted((bad | dict(parsed.bad)).items())) if bad else parsed


def csv_parser(
    types: dict[str, pa.DataType],
    label: str | None,
    delimiter: str,
    *,
    quotes: bool,
    positive: Sequence[str] | None = None,
    decimal: str = ".",
) -> Parser:
    """Parser of delimited text with these columns; empty cells are nulls, ``""`` is the empty string.

    The label, if there is one, becomes int8 as `labelled` says. In a column of numbers the texts of `MISSING`
    are nulls too. The parser raises ValueError for a record that does not match.
    """
    layout = pacsv.ParseOptions(
        delimiter=delimiter, quote_char='"' if quotes else False, newlines_in_values=quotes
    )
    names = list(types)
    texts = [name for name in names if types[name] == pa.string()]
    numbers = [name for name in names if name not in texts]
    floats = [name for name in names if types[name] == pa.float64()]

    def read(raw: bytes, kinds: dict[str, pa.DataType], only: Sequence[str], *nulls: str) -> Any:
        # One block: the columns of a piece are still converted in parallel.
        reading = pacsv.ReadOptions(column_names=names, block_size=len(raw) + 1)
        meaning = pacsv.ConvertOptions(
            column_types=kinds,
            include_columns=only,
            null_values=[*NULLS, *nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=bool(nulls),
            decimal_point=decimal,
        )
        return pacsv.read_csv(pa.BufferReader(raw), reading, layout, meaning)

    def numbers_in(raw: bytes) -> Any:
        """Convert columns of numbers; whole numbers may have a point, as pandas writes them beside a null."""
        try:
            return read(raw, types, numbers, *MISSING)
        except pa.ArrowInvalid as error:
            pointed = {name: _POINTED if types[name] == pa.int64() else types[name] for name in names}
            try:
                table = read(raw, pointed, numbers, *MISSING)
                return table.cast(pa.schema([(name, types[name]) for name in numbers]))
            except pa.ArrowInvalid:
                raise error from None

    def table_of(raw: bytes) -> Any:
        """Convert directly if all numbers are valid: Arrow would apply `MISSING` to string columns too."""
        with suppress(pa.ArrowInvalid):
            return read(raw, types, names)
        words = read(raw, types, texts)
        given = numbers_in(raw)
        return pa.table({name: (given if name in numbers else words).column(name) for name in names})

    def parse(raw: bytes) -> Parsed:
        try:
            table = _nan_as_null(table_of(raw))
        except pa.ArrowInvalid as error:
            raise ValueError(_csv_reason(str(error), names)) from error
        in_words = cache(lambda: read(raw, dict.fromkeys(names, pa.string()), floats))
        return no_other_numbers(
            Parsed(table, []) if label is None else labelled(table, label, positive),
            lambda name: read(raw, {name: pa.int64()}, [name], *MISSING).column(0),
            lambda name, row: str(in_words().column(name)[row].as_py()),
        )

    return parse


def _nan_as_null(table: Any) -> Any:
    """Replace NaN by null, since other `MISSING` texts become null."""
    for place, column in enumerate(table.columns):
        if column.type == pa.float64() and pc.any(nan := pc.is_nan(column)).as_py():
            table = table.set_column(place, table.column_names[place], pc.if_else(nan, None, column))
    return table


def _csv_reason(text: str, names: Sequence[str]) -> str:
    """Arrow's error text, shortened, with the column's name instead of its number."""
    if "invalid UTF8 data" in text:
        place = re.search(r"column #(\d+)", text)
        column = f"column {names[int(place[1])]!r}: " if place else ""
        return f"{column}expected UTF-8, got other bytes (iconv -f latin1 -t utf-8 rewrites them)"
    columns = re.search(r"Expected (\d+) columns, got (\d+)", text)
    if columns:
        return f"expected {columns[1]} columns, got {columns[2]}"
    value = re.search(r"column #(\d+): (?:Row #\d+: )?CSV conversion error to (\w+): (.*)", text)
    if value:
        return f"column {names[int(value[1])]!r}: expected {value[2]}, got {value[3]}"
    return text


def roles_of(
    names: Sequence[str],
    label: str,
    dense: Iterable[str] | None,
    sparse: Iterable[str] | None,
    integers: Iterable[str],
    source: Path,
) -> dict[str, pa.DataType]:
    """Arrow types of the named columns; reports all wrong names at once.

    Raises
    ------
    DataError
        If a column does not exist, or is named for two roles.
    """
    dense, sparse, integers = list(dense or ()), list(sparse or ()), list(integers)
    problems = []
    for name in dict.fromkeys([label, *dense, *sparse, *integers]):
        if name not in names:
            close = difflib.get_close_matches(name, names, n=2)
            hint = (
                f"did you mean {' or '.join(map(repr, close))}?" if close else f"there is {', '.join(names)}"
            )
            problems.append(f"{source}: no column {name!r}; {hint}")
    for name in dict.fromkeys(name for name in dense if name in [*sparse, *integers, label]):
        problems.append(f"column {name!r} is named as dense and as something else: choose one")
    problems += [f"column {label!r} is the label and can't be sparse" for name in sparse if name == label]
    if problems:
        raise DataError(*problems)
    return {
        label: pa.string(),
        **dict.fromkeys(integers, pa.int64()),
        **dict.fromkeys(dense, pa.float64()),
    }


def decimal_of(body: Piece, delimiter: str) -> str:
    """Return the decimal sign, by the first rows: a comma only where a semicolon divides the values."""
    if delimiter != COMMA_DELIMITER:
        return "."
    cells = [cell for row in _cells(body, delimiter) for cell in row]
    commas, points = (sum(matches(pattern, cell) for cell in cells) for pattern in (COMMA, _POINT))
    return "," if commas > points else "."


def with_fractions(
    roles: dict[str, pa.DataType], body: Piece, names: Sequence[str], label: str, delimiter: str, decimal: str
) -> tuple[dict[str, pa.DataType], list[str]]:
    """Select dense columns by the first rows, with notes where their values have another reading.

    A dense column has only numbers (or `MISSING`), at least one of them with a point.
    """
    found, notes = dict(roles), list[str]()
    for name, (seen, odd) in zip(names, _kinds_seen(body, len(names), delimiter, decimal), strict=True):
        pointed = seen["fraction"] + seen["whole_float"]
        numbers = pointed + seen["whole"] + seen["almost"]
        if name in roles or name == label:
            continue
        if odd is None and pointed:
            found[name] = pa.float64()
            if not seen["fraction"]:
                said = "whole numbers with a point, taken as numbers; if they are ids: --integers"
                notes.append(f"column {name!r}: {said} {quote(name)}")
        elif odd is not None and pointed + seen["almost"] and numbers > seen["word"]:
            said = f"{numbers:,} of {numbers + seen['word']:,} are numbers or nearly; write them as 1234.5"
            notes.append(
                f"column {name!r}: taken as words, as {odd!r} is no plain number, though {said}, and nothing "
                "where one is missing"
            )
    return found, notes


def _kinds_seen(
    body: Piece, columns: int, delimiter: str, decimal: str
) -> list[tuple[Counter[str], str | None]]:
    """Kinds of each column's cells in the first rows, and the first cell that is a word or nearly."""
    seen, odd = [Counter[str]() for _ in range(columns)], dict[int, str]()
    for row in _cells(body, delimiter):
        for place, cell in enumerate(row[:columns]):
            kind = _kind_of(re.sub(f"^{COMMA}$", r"\1.\2", cell) if decimal == "," else cell)
            seen[place][kind] += 1
            if kind in ("almost", "word"):
                odd.setdefault(place, cell)
    return [(counts, odd.get(place)) for place, counts in enumerate(seen)]


def _cells(body: Piece, delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of the first rows; those before a fault, which the conversion itself reports."""
    sample = (text.decode(errors="replace") for _, text in body.split()[:SAMPLE_ROWS])
    with suppress(csv.Error):
        yield from csv.reader(sample, delimiter=delimiter)


def _kind_of(cell: str) -> str:
    """Kind of a cell: missing, infinite, whole, whole_float, fraction, almost (a number), or word."""
    if cell in NULLS or cell in MISSING:
        return "missing"
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(cell)), "word")


_KINDS = {
    "whole": re.compile(WHOLE),
    "whole_float": re.compile(WHOLE_FLOAT),
    "fraction": re.compile(NUMBER),
    "infinite": re.compile(INFINITE),
    "almost": re.compile(ALMOST),
}


def tokens_of(raw: bytes) -> pa.ListArray:
    """Tokens of each line of ``raw``, separated by white space; omits comments and empty lines."""
    lines = pa.array(raw[:-1].split(b"\n"), pa.binary()).cast(pa.string())
    lines = pc.ascii_trim_whitespace(pc.replace_substring_regex(lines, "#.*", ""))
    return pc.ascii_split_whitespace(lines.filter(pc.not_equal(lines, "")))


def libsvm_parser(*, with_values: bool, zeros: set[int]) -> Parser:
    """Parser of ``label index:value ...``; raises OtherValues for an unexpected value other than 1.

    A pair of the value 0 is as one that is not there, and is left out; ``zeros`` then gets a member.
    """

    def parse(raw: bytes) -> Parsed:
        tokens = tokens_of(raw)
        labels = pc.list_element(tokens, 0)
        pairs = pc.list_slice(tokens, 1)
        lengths = pc.list_value_length(pairs).to_numpy()
        ids, values = _ids_and_values(pairs.flatten())
        if values is not None and (there := pc.not_equal(values, 0.0)).false_count:
            zeros.add(0)
            rows = np.repeat(np.arange(lengths.size), lengths)
            lengths = np.bincount(rows[there.to_numpy(zero_copy_only=False)], minlength=lengths.size)
            ids, values = ids.filter(there), values.filter(there)
        if not with_values and values is not None and not pc.all(pc.equal(values, 1.0)).as_py():
            raise OtherValues
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        columns = {"label": labels, "ids": pa.ListArray.from_arrays(offsets, ids)}
        if with_values:
            values = pa.repeat(1.0, len(ids)) if values is None else values
            columns["values"] = pa.ListArray.from_arrays(offsets, values)
        return labelled(pa.table(columns), "label")

    return parse


def _ids_and_values(tokens: Any) -> tuple[Any, Any]:
    """Split ``index:value`` tokens; values are None if no token has one."""
    if not len(tokens):
        return pa.array([], pa.int64()), None
    with_colon = pc.sum(pc.match_substring(tokens, ":")).as_py() or 0
    if not with_colon:
        return pc.cast(tokens, pa.int64()), None
    if with_colon != len(tokens):
        raise ValueError("some features have a value and some have none: expected index:value or index alone")
    halves = pc.split_pattern(tokens, ":", max_splits=1)
    return pc.cast(pc.list_element(halves, 0), pa.int64()), pc.cast(pc.list_element(halves, 1), pa.float64())
