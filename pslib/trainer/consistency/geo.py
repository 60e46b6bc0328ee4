"""Geo consistency: each trainer steps a local copy of rows and sends its deltas every ``k`` batches.

A window is ``k`` batches of one lease (the last window of a lease may be shorter). The first batch of a
window that touches a row pulls it; from then on the trainer steps its copy, with the table's own optimizers.
With the last batch of the window it pushes ``copy - pulled`` of every touched row, and of the dense
parameters; servers add these to their values (`Manner.delta`). The next window begins when that push is
applied everywhere, and pulls anew: rows of the copy never outlive a window, only their optimizer state does.
So a row travels once a window in each direction however many batches touch it, and dense parameters travel
once.

Deltas of rows are summed: few rows are touched by several trainers in one window. Dense parameters are
touched by all trainers, and their deltas are averaged. On generated clicks (DeepFM, 400,000 examples in
batches of 512, k = 10; `benchmarks/consistency.py`) test AUC with 2 and with 4 trainers was 0.7852 and 0.7827
this way, 0.7759 and 0.7680 with both averaged, as in PaddlePaddle's geo-SGD, 0.7859 and 0.7759 with both
summed; asynchronous training reached 0.7832 and 0.7829 (2026-11-21).

Optimizer state is local to the trainer: servers keep none, no checkpoint holds it, and a row that leaves the
copy begins with fresh state.

A window is one push, named as its last batch, so it counts once on each unit. A trainer that dies loses up to
``k`` batches of work; the successor to its lease begins with that window, so no example is skipped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cython_ext.data.distinct import distinct
from cython_ext.model.row_places import scatter_add_rows
from cython_ext.table.store import Store
from pslib.batch import Batch
from pslib.client.calls import Manner, Moment, PushName
from pslib.client.client import Client
from pslib.client.gradients import batch_counts
from pslib.client.pending import PendingPull, PendingPush
from pslib.errors import ConfigurationError, PslibError
from pslib.shard.stores import DenseBlocks, make_store
from pslib.table.initializers import Constant
from pslib.table.optimizers import FTRL, SGD
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.table.wire_format import FLOAT32, WireFormat
from pslib.trainer.collective import HeldLease
from pslib.trainer.pipeline.pace import AsyncPace, LeasePlan, StalenessBound
from pslib.trainer.pipeline.row_source import ComputedBatch, PulledRows
from pslib.wire.staleness import Seen

COPY_BITS = 8
"""Partitions of a copy, as a power of two, so that only one grows at a time."""
KEPT = 0.75
"""Fraction of the bound to which a copy over the bound shrinks, oldest rows first."""
STAMPS = 1 << 24
"""Number of windows that a float32 can tell apart."""
TURN_S = 0.2

Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]


def geo_problems(table: TableSpec, dense: DenseSpec) -> list[str]:
    """Return why a table and dense parameters can't be trained by deltas; empty where they can."""
    problems = []
    if any(part.optimizer.catches_up for part in table.parts):
        problems.append(
            "geo: rows with weight_decay or l2 would decay twice, in the copy and on the servers; use 0"
        )
    if any(isinstance(one, FTRL) for one in (*(part.optimizer for part in table.parts), dense.optimizer)):
        problems.append("geo: FTRL makes weights from its own sums and would forget what others have sent")
    return problems


class GeoCopy:
    """State that a trainer keeps between windows: optimizer state, and the memory of its rows.

    Parameters
    ----------
    table : TableSpec
    dense : DenseSpec
    rows_max : int
        Rows with state beyond this number are evicted, least recently touched first. Rows of one window may
        exceed it.

    Raises
    ------
    ConfigurationError
        If an optimizer does not support deltas.
    """

    def __init__(self, table: TableSpec, dense: DenseSpec, rows_max: int) -> None:
        if problems := geo_problems(table, dense):
            raise ConfigurationError(*problems)
        plain = replace(
            table,
            storage="float32",
            admission=None,
            eviction=(),
            score=None,
            compact=None,
            when_full="oldest",
        )
        self.store = make_store(plain, COPY_BITS)
        self.dense = DenseBlocks(dense, 1)
        self.rows_max = rows_max

    def begin(self, dense: Floats) -> None:
        """Begin a window with these dense parameters."""
        if 0 in self.dense.weights:
            self.dense.weights[0][:] = dense
        else:
            self.dense.put(0, dense)
        if self.store.rows > self.rows_max:
            share = 1.0 - KEPT * self.rows_max / self.store.rows
            self.store.evict_share(0, share)


@dataclass(slots=True)
class _Window:
    """Pulled rows of a window, and the part of them that the computing thread has seen."""

    first: int
    keys: list[Keys] = field(default_factory=list)
    pulled: list[Floats] = field(default_factory=list)
    dense: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    seen: Seen = field(default_factory=Seen)  # by its first pull
    counted: list[tuple[Keys, Floats, Floats]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _GeoPull:
    """Pending rows of one batch: those that the window has not pulled yet."""

    rows: GeoRows
    window: _Window
    keys: Keys
    missing: Keys
    pending: PendingPull
    begins: bool

    def wait(self) -> PulledRows:
        """Return the rows of the copy when all are here; called in the computing thread."""
        return self.rows.take_in(self)


class GeoRows:
    """Row source over a copy: gradients step the copy, and every window is one push of deltas.

    Parameters
    ----------
    client : Client
    table : TableSpec
        The table that batches name.
    copy : GeoCopy
    plan_of : callable
        The plan of a lease, by its index.
    every : int
        Batches of a window.
    trainers : int
        Number of trainers; deltas of dense parameters are divided by it.
    wire : WireFormat
        Wire types of rows and deltas; dense parameters travel as float32.
    """

    pushes_behind = False  # the next batch reads the last one's updates from the copy

    def __init__(
        self,
        client: Client,
        table: TableSpec,
        copy: GeoCopy,
        plan_of: Callable[[int], LeasePlan],
        every: int,
        trainers: int,
        wire: WireFormat = FLOAT32,
    ) -> None:
        self._wire = wire
        self._client, self._table, self._copy = client, table, copy
        self._plan_of, self._every, self._share = plan_of, every, np.float32(1.0 / trainers)
        self._seen, self._stamp = _new_seen(), 0
        self._window, self._begins = _Window(0), True

        self._taking = self._window

    def begins(self, number: int) -> bool:
        """Tell whether a window begins with this batch of its lease."""
        return number % self._every == 0

    def batches_before(self, number: int) -> int:
        """Return the batches of the same window before this one, which servers have not received yet."""
        return number % self._every

    # --- the puller's thread ------------------------------------------------------------------------------

    def enter(self, number: int) -> None:
        """Announce the batch of the next pull."""
        self._begins = self.begins(number)
        if self._begins:
            self._window = _Window(number)
            self._stamp += 1
            if self._seen.rows > self._copy.rows_max or self._stamp == STAMPS:
                self._seen, self._stamp = _new_seen(), 1

    def pull(self, batch: Batch, moment: Moment) -> _GeoPull:
        """Pull the rows that this window has not pulled yet, and the dense parameters at its begin."""
        stamps = np.empty((batch.keys.size, 1), np.float32)
        self._seen.pull(batch.keys, stamps)
        missing = batch.keys[stamps[:, 0] != self._stamp]
        stamped = np.full((missing.size, 1), self._stamp, np.float32)
        self._seen.assign(missing, stamped, np.empty((missing.size, 0), np.float32))
        keys = {self._table.name: missing}
        pending = self._client.pull(
            keys, self._begins, step=moment.step, time_s=moment.time_s, rows_as=self._wire.rows
        )
        return _GeoPull(self, self._window, batch.keys, missing, pending, self._begins)

    # --- the computing thread -----------------------------------------------------------------------------

    def take_in(self, pull: _GeoPull) -> PulledRows:
        """Insert a batch's pulled rows into the copy; return the copy's rows of the batch."""
        pulled, copy = pull.pending.wait(), self._copy
        if pull.begins:
            copy.begin(pulled.dense)
            pull.window.dense = pulled.dense
        fresh = pulled.rows[self._table.name]
        copy.store.assign(pull.missing, fresh)
        pull.window.seen = pull.window.seen or pulled.seen
        pull.window.keys.append(pull.missing)
        pull.window.pulled.append(fresh)
        self._taking = pull.window
        rows = np.empty((pull.keys.size, self._table.dim), np.float32)
        copy.store.pull(pull.keys, rows)
        return PulledRows(rows, copy.dense.weights[0], pull.window.seen)

    def push(self, computed: ComputedBatch) -> PendingPush | None:
        """Step the copy; with the last batch of a window, push its deltas."""
        batch, name, moment, rate = computed.batch, computed.name, computed.moment, computed.rate
        counts = batch_counts(batch) if self._table.takes_counts else None
        shows, clicks = (counts.shows, counts.clicks) if counts else (None, None)
        copy, window = self._copy, self._taking
        copy.store.push(batch.keys, computed.rows, now=moment.step, shows=shows, clicks=clicks, rate=rate)
        copy.dense.apply(0, computed.dense, rate)
        if counts:
            window.counted.append((batch.keys, counts.shows, counts.clicks))
        last = self._plan_of(name.stream & 0xFFFFFFFF).batches - 1
        if not self.begins(name.number + 1) and name.number != last:
            return None
        return self._push_deltas(window, name, moment)

    def _push_deltas(self, window: _Window, name: PushName, moment: Moment) -> PendingPush:
        table, copy = self._table.name, self._copy
        keys = np.concatenate(window.keys)
        moved = np.empty((keys.size, self._table.dim), np.float32)
        copy.store.pull(keys, moved)
        moved -= np.concatenate(window.pulled)
        dense = (copy.dense.weights[0] - window.dense) * self._share
        shows, clicks = _summed_counts(window.counted)
        pending = self._client.push(
            {table: (keys, moved)},
            dense,
            name,
            step=moment.step,
            time_s=moment.time_s,
            shows=None if shows is None else {table: shows},
            clicks=None if clicks is None else {table: clicks},
            gradients_as=self._wire.gradients,
            manner=Manner(delta=True),
            since=window.seen,
        )
        pending.on_done(lambda: self._window_over(pending, window, name))
        return pending

    def _window_over(self, pending: PendingPush, window: _Window, name: PushName) -> None:
        """Acknowledge all batches of a window, pushed under its last number, once that push is applied.

        An unapplied window is not acknowledged: the successor to the lease begins with it.
        """
        with suppress(PslibError):
            pending.wait(0)
            with self._client.endpoint.lock:
                self._client.session.acknowledge(name.stream, range(window.first, name.number))


class GeoPace:
    """Pace within a window as `AsyncPace`; a window begins when all earlier ones are applied everywhere.

    Parameters
    ----------
    ahead : int
        Number of batches of a window that may be pulled before the computing thread needs them, less one.
    rows : GeoRows
        Is told which batch is pulled next.
    """

    def __init__(self, ahead: int, rows: GeoRows) -> None:
        self._permits = AsyncPace(StalenessBound(ahead, 0))
        self._rows = rows
        self._quiet = threading.Condition()
        self._open = 0

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Take a permit; before the first batch of a window, wait until no push is in flight."""
        if self._rows.begins(number):
            with self._quiet:
                while self._open:
                    if over.is_set():
                        return None
                    self._quiet.wait(TURN_S)
        if self._permits.enter(lease, number, over) is None:
            return None
        with self._quiet:
            self._open += 1
        self._rows.enter(number)
        return self._rows.batches_before(number)

    def applied(self) -> None:
        """Count a batch that is in the copy and, at the end of a window, on the servers."""
        self._permits.applied()
        with self._quiet:
            self._open -= 1
            self._quiet.notify_all()


def _new_seen() -> Store:
    """Create the store of a window's pulled keys: the window's number in a row of one float."""
    return make_store(TableSpec("seen", (PartSpec("stamp", 1, SGD(), Constant(0.0)),)), COPY_BITS)


def _summed_counts(counted: list[tuple[Keys, Floats, Floats]]) -> tuple[Floats | None, Floats | None]:
    """Sum shows and clicks of all keys of a window, in order of appearance: that of its pulls."""
    if not counted:
        return None, None
    keys, places = distinct(np.concatenate([one[0] for one in counted]))
    shows, clicks = (np.concatenate([one[at] for one in counted])[:, None] for at in (1, 2))
    return (
        scatter_add_rows(shows, places, keys.size)[:, 0].copy(),
        scatter_add_rows(clicks, places, keys.size)[:, 0].copy(),
    )
