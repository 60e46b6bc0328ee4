"""Parameters that follow a cluster: rows in memory, replaced by those of a newer version between batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cython_ext.table.store import Store
from pslib.client.following import Piece, Update
from pslib.errors import ConfigurationError
from pslib.shard.stores import make_store
from pslib.table.optimizers import SGD
from pslib.table.tables import TableSpec
from pslib.trainer.pipeline.dense import DenseLayout


def check_can_follow(table: TableSpec) -> None:
    """Refuse a table whose rows a reader can't follow.

    Raises
    ------
    ConfigurationError
        If it has weight decay or narrow rows, or is stored as int8.
    """
    decayed = [part.name for part in table.parts if part.optimizer.catches_up]
    problem = f"part {decayed[0]} has weight decay, so rows change without a push" if decayed else ""
    problem = problem or ("it has narrow rows" if table.compact is not None else "")
    problem = problem or ("its int8 rows come as floats" if table.storage == "int8" else "")
    if problem:
        raise ConfigurationError(
            f"follow: table {table.name}: {problem}; serve its checkpoints instead, without --follow"
        )


class FollowedParameters:
    """Rows and dense parameters of a cluster, as of its last version here; empty before the first.

    Parameters
    ----------
    table : TableSpec
        The model's table, as saved.
    layout : DenseLayout
        Layout of the model's dense parameters.
    partition_bits : int
        Of the cluster.

    Attributes
    ----------
    dense : dict of array
        Dense parameters, as the model has them.
    version : int
        Number of updates that have been applied.
    as_of_s : float
        Time, by the caller's clock, as of which it has all that was acknowledged.

    Raises
    ------
    ConfigurationError
        If rows of such a table can't be followed.
    """

    def __init__(self, table: TableSpec, layout: DenseLayout, partition_bits: int) -> None:
        check_can_follow(table)
        parts = tuple(replace(part, optimizer=SGD()) for part in table.parts)  # no state
        plain = TableSpec(name=table.name, parts=parts, seed=table.seed, storage=table.storage)
        self._layout = layout
        self._store, self._initial = make_store(plain, partition_bits), make_store(plain, partition_bits)
        self._gate = _Gate()
        self.dense = layout.views(np.zeros(layout.length, np.float32))
        self.version, self.as_of_s = 0, 0.0

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self._store.rows)

    def keys(self) -> NDArray[np.uint64]:
        """Return the keys of all rows, ascending."""
        with self.reading():
            found = [self._store.export_partition(unit)[0] for unit in self._store.partitions().tolist()]
        return np.sort(np.concatenate([np.empty(0, np.uint64), *found]))

    def missing(self, keys: NDArray[np.uint64]) -> int:
        """Return how many of the keys have no row; within `reading` where updates may come."""
        return int(self._store.missing(keys))

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return (n, D) rows of keys, absent ones with initial values; within `reading`, as `missing`."""
        return _pulled(self._store, keys)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep one version while the block runs; within it, no other block of the same thread."""
        with self._gate.shared():
            yield

    def apply(self, update: Update, as_of_s: float) -> None:
        """Make the next version, when no block of `reading` runs; later ones wait for it."""
        dense = self._layout.views(update.dense)
        prepared = [(piece, *self._split(piece)) for piece in update.pieces]
        with self._gate.alone():
            for piece, absent, keys, rows in prepared:
                if mine := [self._store.export_partition(unit)[0] for unit in piece.whole.tolist()]:
                    gone = np.setdiff1d(np.concatenate(mine), piece.keys, assume_unique=True)
                    self._store.erase(gone)
                self._store.erase(absent)
                self._store.assign(keys, rows)
            self.dense = dense
            self.version += 1
            self.as_of_s = as_of_s

    def _split(self, piece: Piece) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.float32]]:
        """Return the keys that have their initial bits, which need no row, and the others with their rows."""
        initial = _pulled(self._initial, piece.keys)
        same = (piece.rows.view(np.uint32) == initial.view(np.uint32)).all(axis=1)
        if not same.any():
            return piece.keys[:0], piece.keys, piece.rows
        return piece.keys[same], piece.keys[~same], piece.rows[~same]


def _pulled(store: Store, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
    found = np.empty((keys.size, store.dim), np.float32)
    store.pull(keys, found)
    return found


class _Gate:
    """Gate of many readers or one writer; a writer that waits goes before new readers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._written = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Enter as one of several readers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._written)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Enter as the writer, of which there is one."""
        with self._changed:
            self._written = True
            self._changed.wait_for(lambda: not self._readers)
        try:
            yield
        finally:
            with self._changed:
                self._written = False
                self._changed.notify_all()
