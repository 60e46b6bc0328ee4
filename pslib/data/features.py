"""Keys of a sparse field from its columns: unchanged values, buckets, parts of a time, crosses.

With ``k(c)`` the keys of column ``c`` as `pslib.data.columns.keys_of` makes them with the field's salt, and
``mix`` a bijection of 64-bit numbers (`cython_ext.common.hashing`)::

    take        keys of the integer hour (0..23), weekday (Monday 0), day (since 1970-01-01) or month (1..12)
    buckets     keys of the integer i with b[i-1] <= x < b[i]
    "log"       keys of the integer floor(log(x)^2) where x > 2, else of floor(x) (Juan et al. 2014, Criteo)
    a cross     h = k(c1);  h = mix(h) ^ k(c2);  ...;  keys of h as an integer

A null, and a number that is NaN, has the null key in all of them; in a cross it counts as one more value.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from cython_ext.common.hashing import hash_ints, mix64
from pslib.data.columns import KeySource, given_source, key_source, keys_of, numbers_of, validity_of
from pslib.schema import LOG_BUCKETS, SparseField

_PARTS = {
    "hour": pc.hour,
    "weekday": pc.day_of_week,
    "month": pc.month,
}
DAY_S = 86_400
YEAR_1_S, YEAR_9999_S = -62_135_596_800, 253_402_300_799
"""First and last second of the calendar's years of four digits."""
UNITS = {"s": ("seconds", 1), "ms": ("milliseconds", 10**3), "us": ("microseconds", 10**6),
         "ns": ("nanoseconds", 10**9)}  # fmt: skip
_RECENT_S = (631_152_000, 4_102_444_800)
"""1990 and 2100: times of events lie between them, in exactly one unit."""


def time_unit(value: int) -> str | None:
    """Unit in which a whole number is a time of 1990 to 2100; None if in none."""
    low, high = _RECENT_S
    return next((unit for unit, (_, a_second) in UNITS.items() if low <= value // a_second < high), None)


def seconds_note(field: SparseField, smallest: int, largest: int) -> str | None:
    """Line about whole numbers of which ``take`` makes no sense, as they are seconds of no usual year."""
    outside = next((value for value in (largest, smallest) if not YEAR_1_S <= value <= YEAR_9999_S), None)
    if outside is None:
        return None
    unit = time_unit(outside)
    said = "it is no time, or one in another unit: write the column as a timestamp"
    if unit:
        said = f"it looks like {UNITS[unit][0]}: write the column as timestamp({unit!r})"
    return (
        f"column {field.columns[0]!r}: take: {field.take} reads whole numbers as seconds since 1970, and "
        f"{outside} is no second of the years 1 to 9999; {said}"
    )


def field_problem(field: SparseField, kind: pa.DataType) -> str | None:
    """Reason why a column of this Arrow type can't supply keys for the field; None if it can.

    `pslib.data.column_types` checks fields without ``take`` and ``buckets``.
    """
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_null(value):
        return None
    if field.take and not (types.is_timestamp(value) or types.is_date(value) or types.is_integer(value)):
        return f"take needs a timestamp, a date, or whole seconds since 1970, got {kind}"
    if field.take and types.is_timestamp(value) and value.tz is not None and not _known_zone(value):
        return f"time zone {value.tz!r} is not known here; write the column in UTC, or install tzdata"
    if field.buckets and not (types.is_integer(value) or types.is_floating(value)):
        return f"buckets need a number, got {kind}"
    return None


def _known_zone(kind: pa.TimestampType) -> bool:
    try:
        pc.local_timestamp(pa.array([0], kind))
    except pa.ArrowInvalid:
        return False
    return True


def field_keys(batch: pa.RecordBatch, field: SparseField) -> NDArray[np.uint64]:
    """Keys of one sparse field.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        n rows with the field's columns.
    field : SparseField

    Returns
    -------
    (n,) uint64
    """
    columns = [batch.column(name) for name in field.columns]
    if field.take:
        return keys_of(_clock(columns[0], field.take), field.salt)
    if field.buckets:
        return _bucketed(columns[0], field)
    keys = keys_of(columns[0], field.salt)
    for column in columns[1:]:
        keys = mix64(keys) ^ keys_of(column, field.salt)
    return keys if len(columns) == 1 else hash_ints(keys.view(np.int64), field.salt, None)


def field_source(batch: pa.RecordBatch, field: SparseField) -> KeySource:
    """Result of `field_keys` as input of `cython_ext.data.examples.fill_keys`."""
    if field.take or field.buckets or len(field.columns) > 1:
        return given_source(field_keys(batch, field))
    return key_source(batch.column(field.columns[0]), field.salt)


def _clock(array: pa.Array, take: str) -> pa.Array:
    """Part of a time as integers; timestamps with a time zone use it, integers are seconds in UTC."""
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if types.is_null(array.type):
        return array
    if types.is_integer(array.type):
        array = array.cast(pa.int64(), safe=False).cast(pa.timestamp("s"))  # uint64 bits, as in keys
    elif types.is_date(array.type):
        array = array.cast(pa.timestamp("s"))
    if array.type.tz is not None:
        array = pc.local_timestamp(array)
    if take == "day":
        # The first day of the nanosecond range, in 1677, has its midnight out of range.
        midnight = pc.floor_temporal(array, unit="day").cast(pa.timestamp("s"), safe=False)
        return pc.divide(midnight.cast(pa.int64()), DAY_S)
    return _PARTS[take](array)


def _bucketed(array: pa.Array, field: SparseField) -> NDArray[np.uint64]:
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        values = numbers_of(array).astype(np.float64)
    valid = np.ones(values.size, np.uint8)
    present = validity_of(array)
    if present is not None:
        valid &= present
    valid[np.isnan(values)] = 0
    values = np.where(valid == 1, values, 0.0)
    return hash_ints(_bucket_of(values, field), field.salt, valid)


def _bucket_of(values: NDArray[np.float64], field: SparseField) -> NDArray[np.int64]:
    if field.buckets != LOG_BUCKETS:
        return np.searchsorted(np.array(field.buckets), values, side="right").astype(np.int64)
    with np.errstate(over="ignore"):
        logs = np.floor(np.log(np.maximum(values, 2.0)) ** 2)
    plain = np.clip(np.floor(values), -(2.0**62), 2.0**62)
    return np.where(values > 2, np.minimum(logs, 2.0**62), plain).astype(np.int64)
