"""Row sources: supply the rows of a batch, and take its gradients.

The pipeline only uses the `RowSource` interface. Implementations are the servers (`ServerRows`), a cache in
front of them (`CachedRows`), and a copy of their rows (`pslib.trainer.consistency.geo.GeoRows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.row_cache import RowCache
from cython_ext.table.store import initial_rows
from pslib.batch import Batch
from pslib.client.calls import Manner, Moment, PushName
from pslib.client.client import Client
from pslib.client.gradients import batch_counts
from pslib.client.pending import PendingPull, PendingPush
from pslib.table.optimizers import SGD, Momentum, RowwiseAdagrad
from pslib.table.tables import TableSpec
from pslib.table.wire_format import FLOAT32, ROW_TYPES, WireFormat
from pslib.trainer.pipeline.dense import DensePulls, ErrorFeedback
from pslib.trainer.progress import CacheCounters
from pslib.trainer.settings import CacheSettings
from pslib.wire.quantization import QuantizedRows
from pslib.wire.staleness import NOTHING_SEEN, Seen


@dataclass(frozen=True, slots=True, eq=False)
class PulledRows:
    """Input of a step.

    Attributes
    ----------
    rows : (U, D) float32
        Rows of ``batch.keys``.
    dense : (length,) float32
        All dense parameters, see `pslib.trainer.pipeline.dense.DenseLayout`.
    seen : mapping
        From `Pulled`, for the push of the gradients.
    """

    rows: NDArray[np.float32]
    dense: NDArray[np.float32]
    seen: Seen


@dataclass(frozen=True, slots=True, eq=False)
class ComputedBatch:
    """Gradients of the mean loss of a batch, in the shapes of `PulledRows`, and how they are pushed.

    Attributes
    ----------
    batch : Batch
    pulled : PulledRows
        Rows and parameters that they were computed from.
    rows, dense : (U, D) and (length,) float32
    name : PushName
    moment : Moment
    rate : float
        Factor of the learning rates.
    """

    batch: Batch
    pulled: PulledRows
    rows: NDArray[np.float32]
    dense: NDArray[np.float32]
    name: PushName
    moment: Moment
    rate: float = 1.0


class PendingRows(Protocol):
    """Pending rows of a batch."""

    def wait(self) -> PulledRows:
        """Wait for the rows and return them. Errors as for `Pending.wait`."""
        ...


class RowSource(Protocol):
    """Interface: rows out, gradients in; batches come in the order in which they are trained.

    Attributes
    ----------
    pushes_behind : bool
        True if another thread may push a batch while the next one computes; else the computing thread pushes
        each before it waits for the rows of the next.
    """

    @property
    def pushes_behind(self) -> bool:
        """See the class."""
        ...

    def pull(self, batch: Batch, moment: Moment) -> PendingRows:
        """Request the rows of a batch; called in the puller's thread."""
        ...

    def push(self, computed: ComputedBatch) -> PendingPush | None:
        """Take a batch's gradients, see ``pushes_behind``; None when nothing is sent now."""
        ...


@dataclass(frozen=True, slots=True)
class _ServerPull:
    table: str
    pending: PendingPull
    dense: DensePulls

    def wait(self) -> PulledRows:
        pulled = self.pending.wait()
        return PulledRows(pulled.rows[self.table], self.dense.arrived(pulled), pulled.seen)


class ServerRows:
    """Row source of async and ssp: each batch reads from the servers and pushes its gradients to them.

    Parameters
    ----------
    client : Client
    table : TableSpec
        The table that batches name.
    wire : WireFormat
        Wire types of rows, gradients and dense parameters.
    """

    pushes_behind = True

    def __init__(self, client: Client, table: TableSpec, wire: WireFormat = FLOAT32) -> None:
        self._client, self._table, self._wire = client, table, wire
        self._dense = DensePulls(client, wire)
        self._feedback = ErrorFeedback(client.session.dense_length, wire.dense)

    def pull(self, batch: Batch, moment: Moment) -> PendingRows:
        """Pull rows and all dense parameters."""
        return self.pull_keys(batch.keys, moment)

    def pull_keys(self, keys: NDArray[np.uint64], moment: Moment) -> PendingRows:
        """Pull some of the keys of a batch."""
        name = self._table.name
        pending = self._client.pull(
            {name: keys},
            step=moment.step,
            time_s=moment.time_s,
            rows_as=self._wire.rows,
            **self._dense.ask(),
        )
        return _ServerPull(name, pending, self._dense)

    def push(self, computed: ComputedBatch) -> PendingPush:
        """Push one message to every server."""
        return self._send(computed, Manner(computed.rate), computed.pulled.seen)

    def _send(self, computed: ComputedBatch, manner: Manner, since: Seen = NOTHING_SEEN) -> PendingPush:
        table = self._table.name
        counts = batch_counts(computed.batch) if self._table.takes_counts else None
        return self._client.push(
            {table: (computed.batch.keys, computed.rows)},
            self._feedback.packed(computed.dense),
            computed.name,
            step=computed.moment.step,
            time_s=computed.moment.time_s,
            shows={table: counts.shows} if counts else None,
            clicks={table: counts.clicks} if counts else None,
            gradients_as=self._wire.gradients,
            manner=manner,
            since=since,
        )


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

    def push(self, computed: ComputedBatch) -> PendingPush:
        """Push to the servers, and update the copy."""
        assert isinstance(computed.pulled, _CachedBatch)
        pending = self._rows.push(computed)
        self._cache.step(computed.pulled.spots, computed.rows, computed.rate)
        return pending


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
