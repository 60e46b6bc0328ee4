"""Parameters of a checkpoint, for a process that scores: rows mapped from its files, or in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cython_ext.model.mapped_rows import MappedRows
from pslib.checkpoint import chain_of, load_shard, mapped_rows
from pslib.checkpoint.dense import dense_vector
from pslib.checkpoint.manifest import ROWS, Manifest
from pslib.errors import CheckpointCorruptError
from pslib.shard.shard import Shard
from pslib.storage import shown
from pslib.table.tables import TableSpec
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.wire.messages import Setup

PARTITION_BITS = 6
"""Partitions of the table: one thread fills them, so their number does not matter."""


class LoadedParameters:
    """Rows and dense parameters of a checkpoint.

    Every file is verified. Rows are mapped: they stay in the checkpoint's files, whose pages the system reads
    when they are used and gives back when it needs the memory; only an index is built, of 10.7 bytes a row.
    Files of an object store are kept in memory. Rows that are not read as they are written are loaded as
    servers load them, with the state of their optimizers: those of tables with weight decay, of which what is
    outstanding at the checkpoint's step is applied, and those of tables with narrow rows.

    Parameters
    ----------
    path : str
        The checkpoint's folder, or that of an increment.
    manifest : Manifest
        Its manifest.
    table : TableSpec
        The model's table, as saved.
    layout : DenseLayout
        Layout of the model's dense parameters.

    Attributes
    ----------
    dense : tuple of array
        Dense parameters, as the model has them.

    Raises
    ------
    CheckpointError
        If it is damaged, or its dense parameters are others.
    """

    def __init__(self, path: str, manifest: Manifest, table: TableSpec, layout: DenseLayout) -> None:
        changing = table.compact is not None or any(part.optimizer.catches_up for part in table.parts)
        self._rows: _StoredRows | _MappedRows = (_StoredRows if changing else _MappedRows)(
            path, manifest, table
        )
        self.dense = layout.views(dense_vector(path, manifest))

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._rows.count

    def keys(self) -> NDArray[np.uint64]:
        """Return the keys of all rows, ascending."""
        return np.sort(self._rows.keys())

    def missing(self, keys: NDArray[np.uint64]) -> int:
        """Return how many of the keys have no row."""
        return self._rows.missing(keys)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return (n, D) rows of keys; absent keys have their initial values."""
        return self._rows.rows(keys)


class _StoredRows:
    """Rows in the store of a shard, which applies outstanding weight decay."""

    def __init__(self, path: str, manifest: Manifest, table: TableSpec) -> None:
        shard = _empty_shard(manifest)
        load_shard(shard, path)
        self._store, about = shard.stores[table.name], manifest.about
        self._now = table.now(int(about.get("steps", 0)), float(about.get("seconds", 0.0)))
        self.count = self._store.rows

    def keys(self) -> NDArray[np.uint64]:
        store, found = self._store, [np.empty(0, np.uint64)]
        for partition in store.partitions().tolist():
            found += [store.export_partition(partition, narrow)[0] for narrow in (False, True)]
        return np.concatenate(found)

    def missing(self, keys: NDArray[np.uint64]) -> int:
        return int(self._store.missing(keys))

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        found = np.empty((keys.size, self._store.dim), np.float32)
        self._store.pull(keys, found, self._now)
        return found


class _MappedRows:
    """Rows in the files of a checkpoint."""

    def __init__(self, path: str, manifest: Manifest, table: TableSpec) -> None:
        self._initial = _empty_shard(manifest).stores[table.name]
        links = chain_of(path)
        most = sum(file.rows for link in links for file in link.manifest.files_of(table.name, ROWS))
        self._index = MappedRows(most, [part.dim for part in table.parts])
        for link, kind, batch in mapped_rows(links, table.name):
            keys = batch.column(0).to_numpy()
            if kind != ROWS:
                self._index.erase(keys)
                continue
            new = self._index.add(keys, [_weights(batch.column(part.name), part.dim) for part in table.parts])
            if new < keys.size and not link.manifest.increment:
                raise CheckpointCorruptError(f"{shown(link.path)}: expected each key once, got one twice")

    @property
    def count(self) -> int:
        return self._index.count

    def keys(self) -> NDArray[np.uint64]:
        return self._index.keys()

    def missing(self, keys: NDArray[np.uint64]) -> int:
        return int(np.count_nonzero(~self._found(keys)[1]))

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        rows, found = self._found(keys)
        if not found.all():
            absent = np.flatnonzero(~found)
            initial = np.empty((absent.size, self._index.dim), np.float32)
            self._initial.pull(keys[absent], initial, 0)
            rows[absent] = initial
        return rows

    def _found(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        rows = np.empty((keys.size, self._index.dim), np.float32)
        return rows, self._index.find(keys, rows)


def _empty_shard(manifest: Manifest) -> Shard:
    """Return a shard with all partitions and the tables of a checkpoint, without a row."""
    shard = Shard(PARTITION_BITS, dense_blocks=1)
    shard.own(np.arange(shard.partitions + shard.dense_blocks))
    tables = {"tables": [spec.to_dict() for spec in manifest.specs.values()]}
    zeros = np.zeros(manifest.dense_length, np.float32)
    shard.setup(Setup(tables, manifest.dense_length, manifest.dense.get("optimizer", {}), zeros))
    return shard


def _weights(column: pa.FixedSizeListArray, dim: int) -> NDArray[np.float32]:
    """Return the (n, dim) floats of a column, which are not copied."""
    floats: NDArray[np.float32] = column.values.to_numpy().reshape(-1, dim)
    return floats[column.offset : column.offset + len(column)]
