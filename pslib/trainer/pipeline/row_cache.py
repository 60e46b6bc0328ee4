"""Row cache: keeps frequently touched rows in the trainer for a few batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.row_cache import RowCache
from cython_ext.table.store import initial_rows
from pslib.batch import Batch
from pslib.client.client import PendingPush
from pslib.client.session import Moment, PushName
from pslib.table.optimizers import SGD, Momentum, RowwiseAdagrad
from pslib.table.tables import TableSpec
from pslib.table.wire_format import ROW_TYPES, WireFormat
from pslib.trainer.collective import HeldLease
from pslib.trainer.pipeline.pace import LeasePlan
from pslib.trainer.pipeline.row_source import Gradients, PendingRows, PulledRows, ServerRows
from pslib.trainer.progress import CacheCounters
from pslib.trainer.settings import CacheSettings
from pslib.wire.quantization import QuantizedRows

__all__ = ["CachedRows"]

PLAIN, ELEMENTWISE, ROWWISE = 0, 1, 2
KEY_BYTES = 8
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class _CachedBatch(PulledRows):
    """Rows of a batch, and their places in the cache."""

    spots: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class _CachedPull:
    cache: RowCache
    keys: NDArray[np.uint64]
    spots: NDArray[np.int32]
    missed: NDArray[np.int32]
    first_values: NDArray[np.float32]
    pending: PendingRows

    def wait(self) -> PulledRows:
        came = self.pending.wait()
        rows = np.empty((self.keys.size, self.cache.dim), np.float32)
        new = (came.rows == self.first_values).all(axis=1)
        self.cache.assemble(self.keys, self.spots, self.missed, came.rows, new, rows)
        return _CachedBatch(rows, came.dense, came.seen, self.spots)


class CachedRows:
    """Row source that pulls only rows that are missing from the cache or too old.

    Every gradient is still sent to the servers; it is also applied to the trainer's copy, see
    `cython_ext.model.row_cache`. Batches must be waited for, and pushed, in the order in which they were
    pulled.

    Parameters
    ----------
    rows : ServerRows
        Source of all other rows.
    table : TableSpec
    settings : CacheSettings
        With an age of at least 1.
    wire : WireFormat
        For the count of bytes.
    counters : CacheCounters
        Counts look-ups.
    pushers : int
        Number of trainers that push to these rows.
    """

    pushes_behind = False  # else reads of write-backs would be a race

    def __init__(
        self,
        rows: ServerRows,
        table: TableSpec,
        settings: CacheSettings,
        wire: WireFormat,
        counters: CacheCounters,
        pushers: int,
    ) -> None:
        self._rows, self._counters = rows, counters
        self._cache = _cache_of(table, settings, pushers)
        self._table, self._wire = table, wire
        scale_bytes = SCALE_BYTES if wire.rows == "int8" else 0
        self._row_bytes = KEY_BYTES + table.dim * ROW_TYPES[wire.rows].itemsize + scale_bytes

    def pull(self, batch: Batch, moment: Moment) -> PendingRows:
        """Pull the missing rows, and the dense parameters."""
        spots, missed = self._cache.plan(batch.keys)
        hits = batch.keys.size - missed.size
        self._counters.looked_up(batch.keys.size, hits, hits * self._row_bytes)
        keys = batch.keys[missed]
        pending = self._rows.pull_keys(keys, moment)
        return _CachedPull(self._cache, batch.keys, spots, missed, self._first_values(keys), pending)

    def _first_values(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the values that a pull gives for absent keys: they tell whether a row is new."""
        parts = [
            initial_rows(
                keys,
                part.dim,
                part.initializer.kind,
                part.initializer.numbers(),
                self._table.part_seed(part),
            )
            for part in self._table.parts
        ]
        packed = QuantizedRows.empty(keys.size, self._table.dim, self._wire.rows)
        packed.put(np.ascontiguousarray(np.concatenate(parts, axis=1)))
        return packed.floats()

    def push(
        self,
        batch: Batch,
        pulled: PulledRows,
        gradients: Gradients,
        name: PushName,
        moment: Moment,
        rate: float = 1.0,
    ) -> PendingPush:
        """Push to the servers, and update the copy."""
        assert isinstance(pulled, _CachedBatch)
        pending = self._rows.push(batch, pulled, gradients, name, moment, rate)
        self._cache.step(pulled.spots, gradients.rows, rate)
        return pending

    def flush(self, lease: HeldLease, plan: LeasePlan) -> None:
        """Do nothing: no push is held back."""
        return


def _cache_of(table: TableSpec, settings: CacheSettings, pushers: int) -> RowCache:
    """Create a cache that mirrors a table's optimizers; those with momentum or moments approximately."""
    optimizers = [part.optimizer for part in table.parts]
    modes = [
        PLAIN
        if isinstance(optimizer, SGD | Momentum)
        else ROWWISE
        if isinstance(optimizer, RowwiseAdagrad)
        else ELEMENTWISE
        for optimizer in optimizers
    ]
    return RowCache(
        settings.rows,
        [part.dim for part in table.parts],
        [optimizer.learning_rate for optimizer in optimizers],
        modes,
        [float(getattr(optimizer, "initial_accumulator", 0.0)) for optimizer in optimizers],
        pushers,
        settings.age_batches,
    )
