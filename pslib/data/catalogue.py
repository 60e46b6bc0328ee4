"""The items that some data names: their keys, and what the data calls them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from pslib.data.columns import keys_of
from pslib.data.dataset import ParquetData
from pslib.data.features import field_keys
from pslib.data.order import GroupSlice
from pslib.data.window import GroupScanner
from pslib.errors import ConfigurationError
from pslib.schema import RaggedField, SparseField

__all__ = ["catalogue_of", "record_batches"]


def record_batches(data: ParquetData) -> Iterator[pa.RecordBatch]:
    """All rows of the data in their order, with the schema's columns.

    Raises
    ------
    DataError
        When a file has vanished, changed or is damaged.
    """
    with closing(GroupScanner(data)) as scanner:
        for place, group in enumerate(data.row_groups):
            for _, batch in scanner.rows(GroupSlice(place, 0, group.rows)) if group.rows else ():
                yield batch


def catalogue_of(data: ParquetData, field: SparseField | RaggedField) -> tuple[NDArray[np.uint64], pa.Array]:
    """Distinct items of a field, by their keys.

    Parameters
    ----------
    data : ParquetData
    field : SparseField or RaggedField
        Of its schema.

    Returns
    -------
    (V,) uint64
        Keys, ascending.
    pyarrow.Array of V
        Their values; the keys themselves where a field takes part of a column, or is made of several.

    Raises
    ------
    ConfigurationError
        When there is no item.
    """
    keys, values = np.empty(0, np.uint64), pa.array([], pa.null())
    for batch in record_batches(data):
        fresh, names = _named(batch, field)
        names = names.cast(values.type) if len(values) else names
        keys, first = np.unique(np.concatenate([keys, fresh]), return_index=True)
        both = pa.concat_arrays([values, names]) if len(values) else names
        values = both.take(pa.array(first))
    if not keys.size:
        raise ConfigurationError(f"{field.name!r}: expected items, got none")
    return keys, values


def _named(batch: pa.RecordBatch, field: SparseField | RaggedField) -> tuple[NDArray[np.uint64], pa.Array]:
    """Keys and values of a batch's items, some of them several times."""
    if isinstance(field, SparseField) and (field.take or field.buckets or len(field.columns) > 1):
        keys = np.unique(field_keys(batch, field))
        return keys, pa.array(keys)
    if isinstance(field, SparseField):
        column = batch.column(field.columns[0])
    else:
        column = batch.column(field.name).flatten()
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values = pc.unique(column)
    return keys_of(values, field.salt), values
