"""The prefetch pipeline: read, key and dedup -> pull (ahead) -> compute -> push (behind).

Three threads and bounded queues: one reads, one pulls, the caller's computes and pushes; acknowledgements
come in the endpoint's thread. A semaphore with one permit more than the bound keeps a trainer from running
too far ahead: a batch takes a permit before its pull and gives it back when its push is applied everywhere,
so with staleness 0 every pull sees every earlier push.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pslib.batch import Batch
from pslib.client import Client, PendingPull, PendingPush
from pslib.errors import PslibError
from pslib.protocol.client_session import Moment
from pslib.trainer.jobs import HeldLease, Job
from pslib.trainer.staleness import StalenessBound
from pslib.trainer.steps import LeasePlan

__all__ = ["Pipeline", "Prefetched"]

READ_AHEAD = 4
"""Batches that wait between reading and pulling: hides the decoding of a window's next piece."""
TURN_S = 0.2

BatchesOf = Callable[[HeldLease], Iterator[Batch]]
PlanOf = Callable[[HeldLease], LeasePlan]
Maintain = Callable[[HeldLease, LeasePlan], PendingPush]


@dataclass(slots=True)
class _LeaseState:
    """How much of a lease is still on its way."""

    lease: HeldLease
    plan: LeasePlan
    left: int
    """Batches that are not applied yet."""


@dataclass(frozen=True, slots=True)
class Prefetched:
    """A batch whose pull is on its way."""

    lease: HeldLease
    number: int
    batch: Batch
    pull: PendingPull
    staleness: int
    moment: Moment


class Pipeline:
    """Batches of a job's leases, pulled ahead.

    Parameters
    ----------
    client : Client
        Pulls and pushes.
    job : Job
        Gives leases.
    batches_of : callable
        Batches of one lease from its ``first_batch`` on.
    plan_of : callable
        Which steps they are.
    maintain : callable
        Starts the maintenance that ends a lease.
    table : str
        The table that batches name.
    staleness : StalenessBound
        How many batches may be on their way at once, less one; it rises while the trainer warms up.
    dense : bool
        Whether each pull reads the dense parameters too.
    """

    def __init__(
        self,
        client: Client,
        job: Job,
        batches_of: BatchesOf,
        plan_of: PlanOf,
        maintain: Maintain,
        table: str,
        staleness: StalenessBound,
        dense: bool,
    ) -> None:
        self._client, self._job, self._batches_of = client, job, batches_of
        self._plan_of, self._maintain = plan_of, maintain
        self._table, self._dense = table, dense
        self._staleness = staleness
        self._permits = threading.Semaphore(staleness.now + 1)
        self._read: queue.Queue[tuple[_LeaseState, int, Batch] | None] = queue.Queue(READ_AHEAD)
        self._pulled: queue.Queue[tuple[_LeaseState, Prefetched] | None] = queue.Queue(staleness.bound + 1)
        self._lock = threading.Lock()
        self._in_flight = 0
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"pslib-{name}", daemon=True)
            for name, work in (("reader", self._read_all), ("puller", self._pull_all))
        ]

    def run(self, compute: Callable[[Prefetched], PendingPush | None]) -> None:
        """Call ``compute`` for every batch, in this thread; return when all of the job's leases are done.

        Raises
        ------
        PslibError
            What any stage ended with.
        """
        for thread in self._threads:
            thread.start()
        try:
            while True:
                item = self._take(self._pulled)
                if item is None:
                    break
                state, prefetched = item
                push = compute(prefetched)
                if push is None:
                    self._batch_done(state)
                else:
                    push.on_done(self._acknowledge(state, push))
            self._check()
        finally:
            self._end()
            for thread in self._threads:
                thread.join(10.0)

    # --- stages -------------------------------------------------------------------------------------------

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # whatever it is, the computing thread must hear of it
            self._stop(error)

    def _read_all(self) -> None:
        for lease in self._job.leases(self._over):
            plan = self._plan_of(lease)
            first = min(lease.first_batch, plan.batches)  # the maintenance may be done too
            state = _LeaseState(lease, plan, plan.batches - first)
            with self._client.endpoint.lock:
                self._client.session.open_stream(lease.stream, lease.first_batch)
            if state.left == 0:
                self._lease_done(state, lambda: None)
            for number, batch in enumerate(self._batches_of(lease), first):
                if not self._put(self._read, (state, number, batch)):
                    return
            if self._over.is_set():
                return
        self._put(self._read, None)

    def _pull_all(self) -> None:
        while (item := self._take(self._read)) is not None:
            state, number, batch = item
            while not self._permits.acquire(timeout=TURN_S):
                self._check()
                if self._over.is_set():
                    return
            with self._lock:
                staleness = self._in_flight
                self._in_flight += 1
            moment = Moment(state.plan.first_step + number, state.lease.time_s)
            pull = self._client.pull(
                {self._table: batch.keys}, self._dense, step=moment.step, time_s=moment.time_s
            )
            prefetched = Prefetched(state.lease, number, batch, pull, staleness, moment)
            if not self._put(self._pulled, (state, prefetched)):
                return
        self._put(self._pulled, None)

    def _acknowledge(self, state: _LeaseState, push: PendingPush) -> Callable[[], None]:
        def acknowledged() -> None:
            try:
                push.wait(0)
                self._batch_done(state)
            except Exception as error:  # a callback's exception would be lost, and the trainer wait for ever
                self._stop(error)

        return acknowledged

    def _batch_done(self, state: _LeaseState) -> None:
        with self._lock:
            state.left -= 1
            over = state.left == 0
        if over:
            self._lease_done(state, self._give_permit)
        else:
            self._give_permit()

    def _give_permit(self) -> None:
        with self._lock:
            self._in_flight -= 1
            risen = self._staleness.batch_done()
        self._permits.release(1 + risen)

    def _lease_done(self, state: _LeaseState, then: Callable[[], None]) -> None:
        """All batches are applied: maintain the table if it is time, before the last permit is given back.

        Else a pull of the next lease could see rows, with staleness 0 too, that this maintenance lets go.
        """
        if not state.plan.maintained:
            then()
            self._end_lease(state)
            return
        pending = self._maintain(state.lease, state.plan)

        def maintained() -> None:
            try:
                pending.wait(0)
                then()
                self._end_lease(state)
            except Exception as error:  # as in _acknowledge
                self._stop(error)

        pending.on_done(maintained)

    def _end_lease(self, state: _LeaseState) -> None:
        pending = self._job.end(state.lease)
        with self._client.endpoint.lock:
            self._client.session.close_stream(state.lease.stream)

        def ended() -> None:
            try:
                pending.wait(0)
            except PslibError as error:
                self._stop(error)
            self._job.look_again()

        pending.on_done(ended)

    # --- queues that end when anything fails --------------------------------------------------------------

    def _stop(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._end()

    def _end(self) -> None:
        """Let every stage end at its next turn."""
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
