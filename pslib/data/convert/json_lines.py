"""JSON lines parser: one object per line, with columns and types inferred from the first records."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from pslib.data.convert.csv_criteo import SAMPLE_ROWS, labelled, no_other_numbers
from pslib.data.convert.records import Parsed, Parser
from pslib.errors import DataError

_PLAIN = {
    frozenset({"float"}): pa.float64(),
    frozenset({"int", "float"}): pa.float64(),
    frozenset({"str"}): pa.string(),
    frozenset({"bool"}): pa.bool_(),
    frozenset(): pa.string(),  # only nulls
}
_LISTS = {
    frozenset({"str"}): pa.list_(pa.string()),
    frozenset(): pa.list_(pa.string()),
}


def json_columns(records: Iterable[bytes], source: Path) -> tuple[dict[str, pa.DataType], set[str]]:
    """Infer columns and Arrow types from the first records, in order of appearance.

    Integers are int64, uint64 if one is too large for it and none negative, or float64 if one of them has a
    point; lists hold integers or strings. Also returns the columns of float64 without any fraction.

    Raises
    ------
    DataError
        If no record is an object, or a column has mixed types; lists all such columns at once.
    """
    types, reasons, wholes = json_kinds(islice(records, SAMPLE_ROWS))
    if not (types or reasons):
        raise DataError(f"{source}: expected a JSON object a line, found none in the first {SAMPLE_ROWS:,}")
    if reasons:
        raise DataError(*(f"{source}: column {name!r}: {why}" for name, why in reasons.items()))
    return types, wholes


def json_kinds(records: Iterable[bytes]) -> tuple[dict[str, pa.DataType], dict[str, str], set[str]]:
    """Return columns and types as `json_columns`, those of no type with the reason, and those of its set."""
    plain: dict[str, set[str]] = defaultdict(set)
    lists: dict[str, set[str]] = defaultdict(set)
    for record in _objects(records):
        for name, value in record.items():
            _look(value, plain[name], lists[name])
    found = {name: _type_of(plain[name], lists[name]) for name in plain}
    if "" in found:
        found[""] = "expected a name, got none"
    types = {name: one for name, one in found.items() if not isinstance(one, str)}
    wholes = {name for name, kind in types.items() if kind == pa.float64() and _FRACTION not in plain[name]}
    return types, {name: one for name, one in found.items() if isinstance(one, str)}, wholes


def _objects(records: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects; the conversion itself rejects other records."""
    for text in records:
        with suppress(ValueError, RecursionError):  # RecursionError for lists nested too deep
            record = json.loads(text)
            if isinstance(record, dict):
                yield record


def _look(value: Any, plain: set[str], lists: set[str]) -> None:
    """Record the kind of a value; for a list, the kinds of its elements."""
    if isinstance(value, list):
        lists.add("")
        for element in value:
            lists.update(_kinds_of(element))
    else:
        plain.update(_kinds_of(value))


_LARGE, _NEGATIVE, _FRACTION = "large", "negative", "fraction"
"""Marks beside the type names of numbers."""


def _kinds_of(value: Any) -> set[str]:
    """Name of a value's type, with the marks of a number; empty for null."""
    if value is None:
        return set()
    marks = set()
    if isinstance(value, int):
        marks = {_LARGE} if 1 << 63 <= value < 1 << 64 else {_NEGATIVE} if value < 0 else set()
    elif isinstance(value, float) and isfinite(value) and not value.is_integer():
        marks = {_FRACTION}
    return {type(value).__name__} | marks


def _type_of(plain: set[str], lists: set[str]) -> pa.DataType | str:
    """Arrow type of a column, or the reason why it has none."""
    whole = pa.uint64() if {_LARGE, _NEGATIVE} & (plain | lists) == {_LARGE} else pa.int64()
    marks = {_LARGE, _NEGATIVE, _FRACTION}
    plain, lists = plain - marks, lists - marks
    if plain and lists:
        return f"expected one type, got lists and {', '.join(sorted(plain))}"
    if "dict" in plain | lists:
        return "expected a value or a list of values, got an object; make columns of what is in it"
    if lists:
        inner = frozenset(lists - {""})
        return (
            pa.list_(whole)
            if inner == {"int"}
            else _LISTS.get(inner) or f"expected lists of int or str, got {', '.join(sorted(inner))}"
        )
    return (
        whole
        if plain == {"int"}
        else _PLAIN.get(frozenset(plain)) or f"expected one type, got {', '.join(sorted(plain))}"
    )


_BORDER = re.compile(rb"\}[ \t\r]*\n[ \t\r]*\{")


def _lines(raw: bytes) -> int:
    """Count the lines; raise ValueError if an object that Arrow can read spans several.

    No string contains a newline, and no object contains ``{`` directly after ``}``: where they stand around a
    newline, one object ends and the next begins.
    """
    octets = np.frombuffer(raw, np.uint8)
    newlines = np.flatnonzero(octets == ord("\n"))[:-1]
    before = octets[newlines - 1]
    before = np.where(before == ord("\r"), octets[newlines - 2], before)
    bare = (before == ord("}")).all() and (octets[newlines + 1] == ord("{")).all()
    if not bare and len(_BORDER.findall(raw)) != newlines.size:
        raise ValueError("expected an object a line, got one that goes over several")
    return newlines.size + 1


def json_parser(
    types: Mapping[str, pa.DataType],
    label: str | None,
    pointed: Sequence[str] = (),
    positive: Sequence[str] | None = None,
) -> Parser:
    """Parser of objects with these columns; an absent member is null.

    The label becomes int8 as `pslib.data.convert.csv_criteo.labelled` says, and an unknown member makes a
    reject; without a label it is left out. Columns in
    ``pointed`` are float64 in ``types``, and become int64: 7.0 is an id too.
    """
    meaning = pajson.ParseOptions(
        explicit_schema=pa.schema(list(types.items())),
        unexpected_field_behavior="ignore" if label is None else "error",
    )

    def parse(raw: bytes) -> Parsed:
        lines = _lines(raw)
        reading = pajson.ReadOptions(block_size=len(raw) + 1)
        try:
            table = pajson.read_json(pa.BufferReader(raw), reading, meaning)
            if not raw.isascii():
                table.validate(full=True)  # Arrow copies bytes that are not UTF-8 unchecked
        except pa.ArrowInvalid as error:
            raise ValueError(_reason(str(error), list(types))) from error
        parsed = Parsed(table, []) if label is None else _labelled(table, label, positive)
        if table.num_rows != lines:  # two records on a line: refused, no place for numbers
            return parsed

        def wholes_of(name: str) -> Any:
            whole = pajson.ParseOptions(
                explicit_schema=pa.schema([(name, pa.int64())]), unexpected_field_behavior="ignore"
            )
            return pajson.read_json(pa.BufferReader(raw), reading, whole).column(0)

        objects = cache(lambda: raw.split(b"\n"))
        found = no_other_numbers(parsed, wholes_of, lambda name, row: _number(objects()[row], name))
        return Parsed(_without_points(found.table, pointed), found.bad)

    return parse


def _labelled(table: Any, label: str, positive: Sequence[str] | None) -> Parsed:
    place = table.schema.get_field_index(label)
    return labelled(table.set_column(place, label, table.column(place).cast(pa.string())), label, positive)


def _without_points(table: Any, pointed: Sequence[str]) -> Any:
    for name in pointed:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(place).cast(pa.int64()))
    return table


def _number(text: bytes, name: str) -> str:
    """Text of a number member of an object, as written."""
    return str(json.loads(text, parse_int=str, parse_float=str, parse_constant=str)[name])


def _reason(text: str, names: Sequence[str]) -> str:
    """Arrow's error text, shortened."""
    if "unexpected field" in text:
        return f"a column that none of the first records has; they have {', '.join(names)}"
    changed = re.search(r"Column\(/?(.*?)\) changed from (\w+) to (\w+)", text)
    if changed and not changed[1]:
        return f"expected an {changed[2]}, got {'an' if changed[3] == 'array' else 'a'} {changed[3]}"
    if changed:
        return f"column {changed[1].removesuffix('/[]')!r}: expected a {changed[2]}, got a {changed[3]}"
    other = re.search(r"Column (\d+): .*Invalid UTF8", text)
    if other:
        return f"column {names[int(other[1])]!r}: expected UTF-8, got other bytes"
    failed = re.search(r"Failed to convert JSON to (\w[^\s,]*).*?: ?(.*)", text)
    if failed:
        return f"expected {failed[1]}, got {failed[2]}"
    return text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
