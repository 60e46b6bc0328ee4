"""Columns of every Arrow type: six rows of each, alone and in lists, with and without nulls."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa

ROWS = 6
CODES = [1, 0, 1, 0, 0, 1]
"""All values are made of these, so that numbers may be labels."""


def _from(make: Callable[[int], Any], *kinds: pa.DataType) -> dict[str, tuple[pa.DataType, list[Any]]]:
    return {str(kind): (kind, [make(code) for code in CODES]) for kind in kinds}


def _moment(code: int) -> dt.datetime:
    return dt.datetime(2024, 2, 28 + code, 7)


UNITS = ("s", "ms", "us", "ns")
PLAIN = {
    **_from(
        int, pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()
    ),
    **_from(float, pa.float16(), pa.float32(), pa.float64()),
    **_from(bool, pa.bool_()),
    **_from(decimal.Decimal, pa.decimal128(5, 0), pa.decimal256(40, 2)),
    **_from(str, pa.string(), pa.large_string(), pa.string_view()),
    **_from(lambda code: b"ab%d" % code, pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)),
    **_from(lambda code: _moment(code).date(), pa.date32(), pa.date64()),
    **_from(_moment, *map(pa.timestamp, UNITS), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Tokyo")),
    **_from(dt.time, pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    **_from(dt.timedelta, *map(pa.duration, UNITS)),
    **_from(lambda _: None, pa.null()),
    **_from(lambda code: {"a": code}, pa.struct([("a", pa.int64())])),
    **_from(lambda code: [("a", code)], pa.map_(pa.string(), pa.int64())),
    **_from(lambda code: [[code]], pa.list_(pa.list_(pa.int64()))),
}
EXTENSIONS = {
    pa.uuid(): [b"%016d" % code for code in CODES],
    pa.json_(): [f"[{code}]" for code in CODES],
    pa.bool8(): CODES,
    pa.opaque(pa.float64(), "point", "test"): CODES,
}
IN_DICTIONARIES = ("int64", "string", "large_string", "double", "fixed_size_binary[3]", "bool", "date32[day]")


def _columns(nulls: bool) -> dict[str, pa.Array]:
    lost = {2} if nulls else set[int]()
    rows = range(ROWS)
    found = {
        name: pa.array([None if i in lost else values[i] for i in rows], kind)
        for name, (kind, values) in PLAIN.items()
    }
    for kind, values in EXTENSIONS.items():
        stored = pa.array([None if i in lost else values[i] for i in rows], kind.storage_type)
        found[str(kind)] = pa.ExtensionArray.from_storage(kind, stored)
    return found | {f"dictionary of {name}": found[name].dictionary_encode() for name in IN_DICTIONARIES}


OFFSETS, SIZES = [0, 1, 1, 3, 4, 5], [1, 0, 2, 1, 1, 1]
AROUND: dict[str, Callable[[pa.Array], pa.Array]] = {
    "alone": lambda array: array,
    "list": lambda array: pa.ListArray.from_arrays([*OFFSETS, ROWS], array),
    "large_list": lambda array: pa.LargeListArray.from_arrays([*OFFSETS, ROWS], array),
    "fixed_size_list": lambda array: pa.FixedSizeListArray.from_arrays(array, 1),
    "list_view": lambda array: pa.ListViewArray.from_arrays(OFFSETS, SIZES, array),
    "large_list_view": lambda array: pa.LargeListViewArray.from_arrays(OFFSETS, SIZES, array),
}


def columns(around: str, nulls: bool) -> dict[str, pa.Array]:
    """Columns of every type that Parquet holds, by name."""
    return {name: AROUND[around](array) for name, array in _columns(nulls).items()}
