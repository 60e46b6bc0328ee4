"""Prefetch pipeline: read, key and dedup -> pull (ahead) -> compute -> push (behind).

Four threads and bounded queues: one reads, one pulls, the caller's computes, one pushes; acknowledgements
arrive in the endpoint's thread. A `RowSource` (`pslib.trainer.pipeline.row_source`) supplies rows, and a
`Pace` (`pslib.trainer.pipeline.pace`) bounds how far a trainer may run ahead.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pslib.batch import Batch
from pslib.client.calls import Moment
from pslib.client.client import Client
from pslib.client.pending import PendingPush
from pslib.errors import DataError, PreemptedError, PslibError
from pslib.process.interruption import Interruption
from pslib.process.shutdown import ACKNOWLEDGED, ASKED, preemption
from pslib.text import counted
from pslib.trainer.checkpoints.pause import JobGate
from pslib.trainer.collective import HeldLease, Job
from pslib.trainer.pipeline.pace import LeasePlan, Pace
from pslib.trainer.pipeline.row_source import PendingRows, RowSource
from pslib.trainer.progress import StageTimes

READ_AHEAD = 4
"""Batches queued between reading and pulling: hides the decoding of a window's next piece."""
PUSHES_WAITING = 2
"""Computed batches queued for the push: each holds its gradients."""
TURN_S = 0.2
SETTLE_S = 2.0
"""Time that an interrupted fit waits for its pushes: the caller must know which are applied."""

BatchesOf = Callable[[HeldLease], Iterator[Batch]]
PlanOf = Callable[[HeldLease], LeasePlan]
Send = Callable[[], PendingPush | None]
"""Sends the result of a step; None when nothing of it is sent now."""
Maintain = Callable[[HeldLease, LeasePlan], PendingPush]


@dataclass(slots=True)
class _LeaseState:
    """Progress of a lease: its outstanding batches."""

    lease: HeldLease
    plan: LeasePlan
    left: int
    """Number of batches not applied yet."""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """A batch whose pull is in flight."""

    lease: HeldLease
    number: int
    batch: Batch
    pull: PendingRows
    staleness: int
    moment: Moment


class Compute(Protocol):
    """Interface to compute batches in sequence or overlapping: `pslib.trainer.pipeline.compute.Computer`."""

    def train(
        self, item: Prefetched, push: Callable[[Send], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Compute a batch or start it: ``push`` gets the sender of its gradients, in the order of batches.

        ``failed`` is called with an error that occurs after this call.
        """
        ...

    def finish(self) -> None:
        """Wait until all started batches are computed."""
        ...


class Pipeline:
    """Pipeline over the batches of a job's leases, pulled ahead.

    Parameters
    ----------
    client : Client
        Pulls and pushes.
    job : Job
        Source of leases.
    batches_of : callable
        Returns the batches of one lease from its ``first_batch`` on.
    plan_of : callable
        Returns the step plan of a lease.
    maintain : callable
        Starts the maintenance that ends a lease.
    rows : RowSource
        Source of rows.
    pace : Pace
        Admits batches to be pulled.
    ahead : int
        Maximum batches that wait for the computing thread, at least 1.
    gate : JobGate
        Gate that stops batches for a cut.
    interruption : Interruption
        Ctrl-C, by which it ends between two batches.
    times : StageTimes
        Counts the time of the stages.
    began_s : float
        Seconds of training before this cluster began.
    """

    def __init__(
        self,
        client: Client,
        job: Job,
        batches_of: BatchesOf,
        plan_of: PlanOf,
        maintain: Maintain,
        rows: RowSource,
        pace: Pace,
        ahead: int,
        gate: JobGate,
        interruption: Interruption,
        times: StageTimes,
        began_s: float = 0.0,
    ) -> None:
        self._client, self._job, self._batches_of = client, job, batches_of
        self._plan_of, self._maintain = plan_of, maintain
        self._rows, self._pace, self._began_s, self._gate = rows, pace, began_s, gate
        self._interruption, self._times = interruption, times
        self._read: queue.Queue[tuple[_LeaseState, int, Batch] | None] = queue.Queue(READ_AHEAD)
        self._pulled: queue.Queue[tuple[_LeaseState, Prefetched] | None] = queue.Queue(ahead)
        self._lock = threading.Lock()
        self._pushed = threading.Condition(self._lock)
        self._open = 0  # pushes that wait or are in flight, and the maintenances that follow them
        self._error: BaseException | None = None
        self._refused: DataError | None = None
        self._over = threading.Event()
        self._computed: queue.Queue[tuple[_LeaseState, Send]] = queue.Queue(PUSHES_WAITING)
        works = {"reader": self._read_all, "puller": self._pull_all}
        # With one batch at a time, nothing can be computed while its gradients are sent.
        self._pushes_behind = rows.pushes_behind and ahead > 1
        if self._pushes_behind:
            works["pusher"] = self._push_all
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"pslib-{name}", daemon=True)
            for name, work in works.items()
        ]

    @property
    def pushes_behind(self) -> bool:
        """True if a batch may be computed before the gradients of the one before are sent."""
        return self._pushes_behind

    def run(self, compute: Compute) -> None:
        """Start every batch, in this thread; return when all of the job's leases are done.

        Parameters
        ----------
        compute : Compute
            Returns the sender of a batch's gradients: it is called in the order of batches, while the next
            one computes where the row source allows that.

        Raises
        ------
        PslibError
            The error of any stage.
        KeyboardInterrupt
            When the interruption is asked for, and all pushes are acknowledged.
        """
        for thread in self._threads:
            thread.start()
        try:
            with preemption.finishing():
                while (item := self._next_counted()) is not None:
                    state, prefetched = item
                    if not self._gate.enter(prefetched.moment.step, self._must_stop):
                        break
                    compute.train(prefetched, partial(self._push, state), self._stop)
                compute.finish()
                self._check()  # an error takes precedence over a request to leave
                if self._leaves():
                    self._drain()
                if self._refused is not None:  # pushes in flight: see `_settle`
                    raise self._refused
            self._check()
        finally:
            self._end()
            for thread in self._threads:
                thread.join(10.0)
            self._settle()

    def _settle(self) -> None:
        """Wait for pushes in flight if the caller's thread was interrupted and nothing else failed."""
        if self._error is None and not self._leaves():
            with self._pushed:
                self._pushed.wait_for(lambda: not self._open or self._error, SETTLE_S)

    def _next_counted(self) -> tuple[_LeaseState, Prefetched] | None:
        times = self._times
        began = times.now_s(), times.pace_s, times.pull_s
        item = self._next()
        times.awaited(*began)
        return item

    def _next(self) -> tuple[_LeaseState, Prefetched] | None:
        """Return the next batch to compute; None at the end, or when this process is to leave the fit."""
        while not self._leaves():
            self._check()
            try:
                return self._pulled.get(timeout=TURN_S)
            except queue.Empty:
                if self._over.is_set():
                    break
        return None

    def _must_stop(self) -> bool:
        """Tell whether a batch that waits for a cut must not be computed at all."""
        self._check()
        return self._leaves() or self._over.is_set()

    def _leaves(self) -> bool:
        """Tell whether this process is asked to leave (SIGTERM), or the fit is interrupted (Ctrl-C)."""
        return preemption.asked or self._interruption.asked

    def _drain(self) -> None:
        """Drain on a request to leave: start nothing, and wait until all pushes are acknowledged.

        Leaving returns the leases, with the batches below which all is applied; their next holders continue
        there, under the same names. So batches that are not acknowledged in time are not lost, and count once
        too.
        """
        self._end()
        limit_s = preemption.left_s if preemption.asked else None
        with self._pushed:
            self._pushed.wait_for(lambda: not self._open or self._error, limit_s)
        self._check()
        if not preemption.asked:
            raise KeyboardInterrupt
        if not self._open:
            raise PreemptedError(ACKNOWLEDGED)
        left = counted(self._open, "push is", "pushes are")
        raise PreemptedError(f"{ASKED}: {left} not acknowledged, and its leases go back")

    # --- stages -------------------------------------------------------------------------------------------

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # any error must reach the caller
            self._stop(error)

    def _read_all(self) -> None:
        for lease in self._job.leases(self._over):
            plan = self._plan_of(lease)
            first = min(lease.first_batch, plan.batches)  # the maintenance may be done too
            state = _LeaseState(lease, plan, plan.batches - first)
            with self._client.endpoint.lock:
                self._client.session.open_stream(lease.stream, lease.first_batch)
            if state.left == 0:
                if not self._gate.enter(plan.first_step + plan.batches, self._must_stop):
                    return
                self._lease_done(state, lambda: None)
            try:
                for number, batch in enumerate(self._times.reading(self._batches_of(lease)), first):
                    if not self._put(self._read, (state, number, batch)):
                        return
            except DataError as error:  # earlier batches are valid: train and save them
                self._refused = error
                break
            if self._over.is_set():
                return
        self._put(self._read, None)

    def _pull_all(self) -> None:
        while (item := self._take(self._read)) is not None:
            state, number, batch = item
            began_s = self._times.now_s()
            staleness = self._pace.enter(state.lease, number, self._over)
            entered_s = self._times.now_s()
            self._times.pace_s += entered_s - began_s
            if staleness is None:
                return
            moment = Moment(state.plan.first_step + number, self._began_s + state.lease.time_s)
            pull = self._rows.pull(batch, moment)
            self._times.pull_s += self._times.now_s() - entered_s
            prefetched = Prefetched(state.lease, number, batch, pull, staleness, moment)
            if not self._put(self._pulled, (state, prefetched)):
                return
        self._put(self._pulled, None)

    def _push(self, state: _LeaseState, send: Send) -> None:
        """Send the result of a step, or queue it for the pusher."""
        began_s = self._times.now_s()
        if self._pushes_behind:
            with self._lock:
                self._open += 1
            self._put(self._computed, (state, send))
            self._times.send_s += self._times.now_s() - began_s
            return
        pending = send()
        self._times.send_s += self._times.now_s() - began_s
        self._after(pending, partial(self._batch_done, state))

    def _push_all(self) -> None:
        while (item := self._take(self._computed)) is not None:
            state, send = item
            self._after(send(), partial(self._batch_done, state))
            self._one_less_open()

    def _batch_done(self, state: _LeaseState) -> None:
        with self._lock:
            state.left -= 1
            over = state.left == 0
        if over:
            self._lease_done(state, self._pace.applied)
        else:
            self._pace.applied()
            self._gate.ended()

    def _lease_done(self, state: _LeaseState, then: Callable[[], None]) -> None:
        """Maintain the table if due when a lease is applied, before the pace is told.

        Otherwise a pull of the next lease could see rows, with staleness 0 too, that this maintenance evicts.
        """

        def end() -> None:
            then()
            self._end_lease(state)

        due = state.plan.maintained and state.lease.first_batch <= state.plan.batches  # else it was done
        self._after(self._maintain(state.lease, state.plan) if due else None, end)

    def _after(self, pending: PendingPush | None, then: Callable[[], None]) -> None:
        """Call ``then`` when a push is applied, or at once without one."""
        if pending is None:
            then()
            return
        with self._lock:
            self._open += 1

        def applied() -> None:
            try:
                pending.wait(0)
                then()
            except Exception as error:  # would be lost, and the trainer hang
                self._stop(error)
            self._one_less_open()

        pending.on_done(applied)

    def _one_less_open(self) -> None:
        with self._pushed:
            self._open -= 1
            self._pushed.notify_all()

    def _end_lease(self, state: _LeaseState) -> None:
        pending = self._job.end(state.lease)
        with self._client.endpoint.lock:
            self._client.session.close_stream(state.lease.stream)

        def ended() -> None:
            try:
                pending.wait(0)
            except PslibError as error:
                self._stop(error)
            self._gate.ended()
            self._job.look_again()

        pending.on_done(ended)

    # --- queues that end when anything fails --------------------------------------------------------------

    def _stop(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._end()

    def _end(self) -> None:
        """Make every stage end at its next turn."""
        self._over.set()
        self._job.look_again()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _put(self, target: queue.Queue, item: object) -> bool:  # type: ignore[type-arg]
        while not self._over.is_set():
            try:
                target.put(item, timeout=TURN_S)
                return True
            except queue.Full:
                continue
        return False

    def _take(self, source: queue.Queue):  # type: ignore[type-arg, no-untyped-def]
        while True:
            self._check()
            try:
                return source.get(timeout=TURN_S)
            except queue.Empty:
                if self._over.is_set():
                    return None
