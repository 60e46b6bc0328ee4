"""Parameters of a checkpoint, in this process's memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pslib.checkpoint import load_shard
from pslib.checkpoint.manifest import Manifest
from pslib.shard.shard import Shard
from pslib.table.tables import TableSpec
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.wire.messages import Setup

PARTITION_BITS = 6
"""Partitions of the table: one thread fills them, so their number does not matter."""


class LoadedParameters:
    """Rows and dense parameters of a checkpoint, read as servers read them.

    Every file is verified. Rows and the state of their optimizers are in memory: weight decay that is
    outstanding at the checkpoint's step is applied to a row when it is read.

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

    Raises
    ------
    CheckpointError
        If it is damaged, or its dense parameters are others.
    """

    def __init__(self, path: str, manifest: Manifest, table: TableSpec, layout: DenseLayout) -> None:
        shard = Shard(PARTITION_BITS, dense_blocks=1)
        shard.own(np.arange(shard.partitions + shard.dense_blocks))
        tables = {"tables": [spec.to_dict() for spec in manifest.specs.values()]}
        optimizer = manifest.dense.get("optimizer", {})
        zeros = np.zeros(manifest.dense_length, np.float32)
        shard.setup(Setup(tables, manifest.dense_length, optimizer, zeros))
        load_shard(shard, path)
        about = manifest.about
        self._store = shard.stores[table.name]
        self._now = table.now(int(about.get("steps", 0)), float(about.get("seconds", 0.0)))
        vector = shard.dense.weights[0] if shard.dense and shard.dense.weights else zeros
        self.dense = layout.views(np.array(vector, np.float32))

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._store.rows

    def keys(self) -> NDArray[np.uint64]:
        """Return the keys of all rows, ascending."""
        store, found = self._store, [np.empty(0, np.uint64)]
        for partition in store.partitions().tolist():
            found += [store.export_partition(partition, narrow)[0] for narrow in (False, True)]
        return np.sort(np.concatenate(found))

    def missing(self, keys: NDArray[np.uint64]) -> int:
        """Return how many of the keys have no row."""
        return int(self._store.missing(keys))

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return (n, D) rows of keys; absent keys have their initial values."""
        found = np.empty((keys.size, self._store.dim), np.float32)
        self._store.pull(keys, found, self._now)
        return found
