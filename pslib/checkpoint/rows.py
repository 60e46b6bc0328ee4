"""Conversion between table rows and Arrow columns, for any storage type of the same parts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from pslib.shard.shard import Shard
from pslib.table.tables import PartSpec, RowLayout, TableSpec, counter_names, scale_name

FloatRows = NDArray[np.float32]


def _columns(spec: TableSpec) -> Iterator[pa.Field]:
    yield pa.field("key", pa.uint64(), nullable=False)
    for name in counter_names(spec):
        yield pa.field(name, pa.float32(), nullable=False)
    for place, part in enumerate(spec.parts):
        wide = bool(spec.compact) and place >= spec.narrow_parts
        yield pa.field(part.name, pa.list_(pa.float32(), part.dim), nullable=wide)
        if spec.storage == "int8":
            yield pa.field(scale_name(part), pa.float32(), nullable=wide)
        if part.state_floats:
            yield pa.field(f"{part.name}_state", pa.list_(pa.float32(), part.state_floats), nullable=wide)


def table_schema(spec: TableSpec) -> pa.Schema:
    """Schema of a table's file: ``key``, counters, then for each part weights, scale and state.

    Weights are float32 for any storage. Parts that narrow rows lack may be null.
    """
    return pa.schema(list(_columns(spec)), metadata={"pslib.table": json.dumps(spec.to_dict())})


def table_in(schema: pa.Schema) -> dict[str, Any]:
    """Description of the table, in plain form, from the schema of one of its row files."""
    about: dict[str, Any] = json.loads(schema.metadata[b"pslib.table"])
    return about


def _list_column(rows: FloatRows) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


class BatchBuilder:
    """Build record batches of rows of one layout; precomputes what all batches share.

    Parameters
    ----------
    schema : Schema
        Schema of the table.
    layout : RowLayout
        Layout of wide rows, or of narrow ones.
    """

    def __init__(self, schema: pa.Schema, layout: RowLayout) -> None:
        self._schema, self._head, self._columns = schema, layout.head, tuple(layout.columns())
        self._with_state = {part.name for part, _, _ in self._columns if part.state_floats}

    def batch(self, keys: NDArray[np.uint64], weights: FloatRows, state: FloatRows) -> pa.RecordBatch:
        """Record batch of rows as exported by a Store."""
        columns = {"key": pa.array(keys)}
        for place, name in enumerate(self._head):
            columns[name] = pa.array(np.ascontiguousarray(state[:, place]))
        for part, at, state_at in self._columns:
            columns[part.name] = _list_column(weights[:, at])
            if part.name in self._with_state:
                columns[f"{part.name}_state"] = _list_column(state[:, state_at])
        arrays = [columns.get(field.name) for field in self._schema]
        if len(columns) < len(arrays):
            missing = zip(arrays, self._schema, strict=True)
            arrays = [pa.nulls(keys.size, field.type) if one is None else one for one, field in missing]
        return pa.record_batch(arrays, schema=self._schema)


class RowReader:
    """Import rows of a checkpoint into the stores of a shard.

    Parameters
    ----------
    shard : Shard
        Owner of the partitions to be filled.
    table : str
        Table of the shard with the same parts as in the checkpoint.
    now : float
        Last-seen time of rows without one, in the unit of the table's clock.
    same_clock : bool
        True if the checkpoint's table has the same clock; else its last-seen times are ignored.
    with_state : bool
        True to load optimizer state; else it starts fresh.
    """

    def __init__(
        self, shard: Shard, table: str, now: float, same_clock: bool = True, with_state: bool = True
    ) -> None:
        self._shard, self._table = shard, table
        self._spec, self._store = shard.tables[table], shard.stores[table]
        self._fresh = {
            part.name: part.optimizer.initial_state(part.dim) for part in self._spec.parts if not with_state
        }
        self._passed_over = frozenset() if same_clock else frozenset({"last_seen"})
        self._defaults: Mapping[str, float] = {"last_seen": now, "shows": 1.0, "clicks": 0.0}

    def take(self, batch: pa.RecordBatch) -> int:
        """Import the rows of this shard's partitions; return their number.

        Raises
        ------
        MemoryLimitError
            If there is no memory for them.
        """
        keys = batch.column("key").to_numpy(zero_copy_only=False)
        mine = self._shard.own_keys(keys)
        if mine.size == 0:
            return 0
        last, wide, narrow = batch.column(self._spec.parts[-1].name), mine, mine[:0]
        if last.null_count:
            is_narrow = pc.is_null(last).to_numpy(zero_copy_only=False)[mine]
            wide, narrow = mine[~is_narrow], mine[is_narrow]
        self._shard.room.make_for_rows(
            {self._table: keys[wide]}, {self._table: keys[narrow]}, self._shard.stores, self._shard.tables
        )
        if wide.size:
            self._store.assign(keys[wide], *self._rows(batch, RowLayout.of(self._spec), wide))
        if narrow.size:
            self._import_narrow(keys, batch, narrow)
        return mine.size

    def _import_narrow(
        self, keys: NDArray[np.uint64], batch: pa.RecordBatch, places: NDArray[np.int32]
    ) -> None:
        """Import narrow rows by partition; this table may have more partitions than the checkpoint's."""
        partitions = partition_of(keys[places], self._shard.partition_bits)
        layout = RowLayout.of(self._spec, narrow=True)
        for partition in np.unique(partitions).tolist():
            some = places[partitions == partition]
            self._store.import_partition(partition, keys[some], *self._rows(batch, layout, some), True)

    def _rows(
        self, batch: pa.RecordBatch, layout: RowLayout, places: NDArray[np.int32]
    ) -> tuple[FloatRows, FloatRows]:
        """Weights and state of rows in the table's layout; counters that it lacks are skipped."""
        weights = np.empty((places.size, layout.dim), np.float32)
        state = np.empty((places.size, layout.state_floats), np.float32)
        for column, name in enumerate(layout.head):
            state[:, column] = self._head(batch, name, places)
        for part, at, state_at in layout.columns():
            weights[:, at] = _list_rows(batch, part, "", part.dim, places)
            if part.name in self._fresh:
                state[:, state_at] = self._fresh[part.name]
            elif part.state_floats:
                state[:, state_at] = _list_rows(batch, part, "_state", part.state_floats, places)
        return weights, state

    def _head(self, batch: pa.RecordBatch, name: str, places: NDArray[np.int32]) -> FloatRows | float:
        """Counter or scale; 0 lets the store compute the scale of rows that were not int8."""
        if name not in batch.schema.names or name in self._passed_over:
            return self._defaults.get(name, 0.0)
        numbers: FloatRows = batch.column(name).to_numpy(zero_copy_only=False)
        return numbers[places]


def _list_rows(
    batch: pa.RecordBatch, part: PartSpec, suffix: str, width: int, places: NDArray[np.int32]
) -> FloatRows:
    column = batch.column(f"{part.name}{suffix}")
    # values, not flatten: flatten omits the entries behind nulls
    rows: FloatRows = column.values.to_numpy(zero_copy_only=False).reshape(-1, width)
    return rows[places + column.offset]
