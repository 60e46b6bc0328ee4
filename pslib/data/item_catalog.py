"""Item catalogue: distinct keys of an item field in some data, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from pslib.data.columns import elements_of, keys_of, plain_text
from pslib.data.dataset import ParquetData
from pslib.data.features import field_keys
from pslib.data.order import GroupSlice
from pslib.data.window import GroupScanner
from pslib.errors import ConfigurationError
from pslib.schema import RaggedField, SparseField

__all__ = ["SORT_AT_ONCE", "catalogue_of", "record_batches"]

Named: TypeAlias = tuple[NDArray[np.uint64], pa.Array]

SORT_AT_ONCE = 1 << 22
"""Keys sorted together: 32 MiB."""


def record_batches(data: ParquetData) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the data in order, with the schema's columns.

    Raises
    ------
    DataError
        If a file is missing, changed or damaged.
    """
    with closing(GroupScanner(data)) as scanner:
        scanner.expect(
            [GroupSlice(i, 0, group.rows) for i, group in enumerate(data.row_groups) if group.rows]
        )
        for place, group in enumerate(data.row_groups):
            for _, batch in scanner.rows(GroupSlice(place, 0, group.rows)) if group.rows else ():
                yield batch


def catalogue_of(data: ParquetData, field: SparseField | RaggedField) -> Named:
    """Return the distinct keys of an item field and their values.

    Parameters
    ----------
    data : ParquetData
    field : SparseField or RaggedField
        A field of the data's schema.

    Returns
    -------
    (V,) uint64
        Keys, ascending.
    pyarrow.Array of V
        Their values, in a common type of all files; the keys themselves if a field takes part of a column, or
        crosses several.

    Raises
    ------
    ConfigurationError
        If there is no item.
    """
    known: Named = np.empty(0, np.uint64), pa.nulls(0)
    waiting: list[Named] = []
    for batch in record_batches(data):
        waiting.append(_named(batch, field))
        # At least as many as are known already; otherwise re-sorting the known keys dominates.
        if sum(keys.size for keys, _ in waiting) >= max(SORT_AT_ONCE, known[0].size):
            known, waiting = _distinct([known, *waiting]), []
    keys, values = _distinct([known, *waiting])
    if not keys.size:
        raise ConfigurationError(f"{field.name!r}: expected items, got none")
    return keys, values


def _distinct(pieces: list[Named]) -> Named:
    """Distinct keys, ascending, with the first value of each; values in a common type."""
    kind = reduce(_common, (values.type for _, values in pieces))
    keys, first = np.unique(np.concatenate([keys for keys, _ in pieces]), return_index=True)
    values = pa.concat_arrays([_as(kind, values) for _, values in pieces])
    return keys, values.take(pa.array(first))


def _as(kind: pa.DataType, values: pa.Array) -> pa.Array:
    return pa.nulls(len(values), kind) if types.is_null(values.type) else values.cast(kind, safe=False)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Common type for values of two types whose equal values have equal keys: both integers, or both strings.

    An unsigned type beside a signed one keeps its bits, as in its key.
    """
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    kinds = (one, other)
    if any(types.is_integer(kind) or types.is_boolean(kind) for kind in kinds):
        return pa.uint64() if all(map(types.is_unsigned_integer, kinds)) else pa.int64()
    is_text = all(types.is_string(kind) or types.is_large_string(kind) for kind in kinds)
    return pa.large_string() if is_text else pa.large_binary()


def _named(batch: pa.RecordBatch, field: SparseField | RaggedField) -> Named:
    """Keys and values of a batch's items, with repetitions."""
    if isinstance(field, SparseField) and (field.take or field.buckets or len(field.columns) > 1):
        keys = np.unique(field_keys(batch, field))
        return keys, pa.array(keys)
    if isinstance(field, SparseField):
        column = batch.column(field.columns[0])
    else:
        column = elements_of(batch.column(field.name))[0]
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values = pc.unique(plain_text(column))
    return keys_of(values, field.salt), values
