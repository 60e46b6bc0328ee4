"""Collective calls: all trainers open the same job, and work on its leases until all are done.

`fit`, `evaluate`, `save` and `load` are all jobs. A job with one lease is done by the trainer that gets it,
or by another one if that trainer dies.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.client.client import Client
from pslib.client.pending import Pending
from pslib.data.dataset import ParquetData
from pslib.data.order import Order
from pslib.errors import PslibError
from pslib.table.tables import text_hash
from pslib.trainer.progress import Progress
from pslib.wire.fields import Arrays, Message, json_array
from pslib.wire.messages import Clock, EndLease, JobResult, Lease, NextLease, OpenJob, Result, Status

log = logging.getLogger(__name__)
NO_TABLE = np.empty(0, np.uint8)
NAMED_FROM = 6
"""Wait reports before the trainers waited for are named (half a minute), and between two status requests.

At each end of an epoch hundreds of trainers briefly wait for the last leases, and all of them would request a
status, which then costs the coordinator some milliseconds each.
"""
NAMES_TOLD = 4
ASK_AGAIN_S = 0.05
ASK_AGAIN_MAX_S = 0.5


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Specification of a job: its kind, a fingerprint equal on all trainers, and details for its outcome.

    ``windows`` (leases,) uint32: the shuffle window of each lease. With ``by_rank`` every trainer has its own
    leases. ``resume`` is the table of the cut that the job continues, or empty.
    """

    what: str
    fingerprint: int
    details: Mapping[str, Any]
    windows: NDArray[np.uint32]
    by_rank: bool = False
    resume: Mapping[str, Any] = field(default_factory=dict)


def spec_of(
    what: str,
    data: ParquetData,
    order: Order,
    counts: Sequence[int],
    details: Mapping[str, Any],
    settings: Sequence[Any],
    by_rank: bool = False,
) -> JobSpec:
    """Build the specification of a job over epochs of data, ``counts`` leases in each.

    All trainers must agree on ``settings``.
    """
    windows: list[int] = []
    first = 0
    for epoch, count in enumerate(counts, int(details.get("first_epoch", 0))):
        windows += [first + order.lease(epoch, index).window for index in range(count)]
        first = windows[-1] + 1
    fingerprint = text_hash(what, str(data.fingerprint), json.dumps([list(settings), list(counts)]))
    return JobSpec(what, fingerprint, details, np.asarray(windows, np.uint32), by_rank)


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that this trainer holds; ``time_s`` is the time of all its records."""

    stream: int
    index: int
    epoch: int
    first_batch: int
    time_s: float = 0.0


class Job:
    """A collective call, from the view of one trainer.

    Parameters
    ----------
    client : Client
        Sends requests to the coordinator.
    progress : Progress
        Reports the positions of held leases.
    number : int
        Sequence number of the script's collective call.
    spec : JobSpec
        The job's specification.

    Raises
    ------
    ConfigurationError
        If another trainer's call of the same number differs.
    """

    passed = False
    """True if a checkpoint marks it as done, or it was done before a training call was made again."""
    repeated = False
    """True if this process has opened it before."""

    def __init__(self, client: Client, progress: Progress, number: int, spec: JobSpec) -> None:
        self.client, self.progress, self.number = client, progress, number
        self._look = threading.Event()
        progress.forget_jobs_until(number)  # unfinished leases go to others, or here again after Ctrl-C
        message = OpenJob(
            client.rank,
            number,
            spec.what,
            spec.fingerprint,
            dict(spec.details),
            np.asarray(spec.windows, np.uint32),
            spec.by_rank,
            json_array(spec.resume) if spec.resume else NO_TABLE,
        )
        answer = client.ask_coordinator(message)
        self._may_wait = spec.what == "window"  # for files, without a limit
        self._votes = spec.what == "vote"
        self.ranks: tuple[int, ...] = ()
        """Trainers that share the leases of a job ``by_rank``."""
        self.examples_before = 0
        """Examples of it that an earlier run has trained."""
        if isinstance(answer, Result):
            self.ranks = tuple(answer.values.get("ranks", ()))
            self.examples_before = int(answer.values.get("examples_before", 0))

    def leases(self, over: threading.Event | None = None) -> Iterator[HeldLease]:
        """Yield leases for this trainer until all leases of the job (of all trainers) are done.

        Parameters
        ----------
        over : Event or None
            Ends the wait for more leases when it is set and `look_again` is called.
        """
        clock, report_s = self.client.endpoint.clock, self.client.endpoint.timing.report_s
        pause_s, waiting_since, reported_s = ASK_AGAIN_S, clock.now_s(), clock.now_s()
        reports, hold = 0, "other trainers hold"
        while not (over and over.is_set()):
            self._look.clear()
            lease = self._next()
            if lease.state == "done":
                return
            if lease.state == "held":
                self.progress.hold(lease.stream)
                yield HeldLease(
                    lease.stream, lease.index, lease.epoch, self._first_batch(lease), lease.time_s
                )
                pause_s, waiting_since = ASK_AGAIN_S, clock.now_s()
                reports, hold = 0, "other trainers hold"  # the holders may differ next time
                continue
            now_s = clock.now_s()
            alone = not (self._may_wait or self.progress.held())  # else: files, or its own work
            if now_s - max(reported_s, waiting_since) > report_s and alone:
                reported_s, reports = now_s, reports + 1
                hold = self._who_holds() if reports % NAMED_FROM == 0 else hold
                awaited = "votes of other trainers" if self._votes else f"leases that {hold}"
                log.warning("pslib: waiting %.0f s for %s", now_s - waiting_since, awaited)
            self._look.wait(pause_s)
            pause_s = min(pause_s * 1.5, ASK_AGAIN_MAX_S)

    def _first_batch(self, lease: Lease) -> int:
        """Return the first batch to train of a lease: of one that this trainer had, it knows more."""
        endpoint = self.client.endpoint
        with endpoint.lock:
            known = endpoint.session.acked_below(lease.stream) if endpoint.session else 0
        return max(lease.first_batch, known)

    def _who_holds(self) -> str:
        """Describe the holders of the leases that this trainer waits for."""
        answer = self.client.ask_coordinator(Status(details=True))
        status = answer.values if isinstance(answer, Result) else {}
        held = {rank for rank, _leases in status.get("work", {}).get("held", ())} - {self.client.rank}
        names = [
            f"trainer {one['rank']} ({one['where']})"
            for one in status.get("members", ())
            if one["role"] == "trainer" and one["state"] == "live" and one["rank"] in held
        ]
        more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
        hold = "holds" if len(names) == 1 else "hold"
        return f"{', '.join(names[:NAMES_TOLD]) or 'other trainers'}{more} {hold}"

    def look_again(self) -> None:
        """Wake `leases` from a pause: a lease has ended, or no more are needed; thread-safe."""
        self._look.set()

    def _next(self) -> Lease:
        holding = np.asarray(self.progress.held(), np.uint64)
        message = NextLease(self.client.rank, self.client.member.incarnation, self.number, holding)
        answer = self.client.ask_coordinator(message)
        assert isinstance(answer, Lease)
        return answer

    def confirm(self) -> None:
        """Confirm, before an irreversible step, that this trainer still holds its leases.

        Raises
        ------
        UnavailableError
            If the coordinator counts this trainer as lost: others have its leases.
        """
        self._next()

    def tell_clock(self, clock: int) -> Pending[Message]:
        """Report how many batches are applied for this trainer; the pending gives `Clocks`."""
        message = Clock(self.client.rank, self.client.member.incarnation, self.number, clock)
        return self.client.endpoint.ask(self.client.member.coordinator, message)

    def pause(self) -> None:
        """Report that this trainer leaves a fit that it may go on with: no other call waits for it."""
        self._end(HeldLease(self.number << 32, 0, 0, 0), {"paused": np.ones(1, np.uint8)}).wait()

    def end(self, lease: HeldLease, payload: Arrays | None = None) -> Pending[Message]:
        """Report that all batches of a lease are applied; the pending is done when it is recorded."""
        pending = self._end(lease, payload or {})
        pending.on_done(lambda: self.progress.drop(lease.stream))
        return pending

    def leave(self) -> None:
        """Return all leases of a fit that was interrupted here and can't go on here; no reply is awaited."""
        self.progress.forget_jobs_until(self.number)
        self.give_back(HeldLease(self.number << 32, 0, 0, 0))

    def give_back(self, lease: HeldLease) -> None:
        """Return the only lease of a job that failed here; the reply is not awaited."""
        self.progress.drop(lease.stream)
        with suppress(PslibError):  # a closed client can send no request
            self._end(lease, {"given_back": np.ones(1, np.uint8)})

    def _end(self, lease: HeldLease, payload: Arrays) -> Pending[Message]:
        client = self.client
        about = (client.rank, client.member.incarnation, self.number, lease.stream, lease.epoch)
        return client.endpoint.ask(client.member.coordinator, EndLease(*about, payload))

    def outcome(self) -> dict[str, Any]:
        """Return the job's outcome; all its leases must be done."""
        answer = self.client.ask_coordinator(JobResult(self.number))
        assert isinstance(answer, Result)
        return dict(answer.values["outcome"])


class PassedJob(Job):
    """A call that is done, see `Job.passed`: it has no work, and its outcome is known.

    Parameters
    ----------
    number : int
    outcome : mapping
    ranks : sequence of int
        Trainers that shared it, where leases were assigned by rank.
    """

    passed = True

    def __init__(self, number: int, outcome: Mapping[str, Any], ranks: Sequence[int]) -> None:
        self.number, self.ranks, self._outcome = number, tuple(ranks), dict(outcome)
        self.examples_before = int(outcome.get("examples", 0))

    def leases(self, over: threading.Event | None = None) -> Iterator[HeldLease]:
        """Yield no lease."""
        return iter(())

    def outcome(self) -> dict[str, Any]:
        """Return the recorded outcome."""
        return self._outcome
