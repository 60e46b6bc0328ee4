"""Checkpoint pause: stops a trainer for a cut, with no push begun and all pushes acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pslib.client.client import Client
from pslib.coordinator.checkpoint_barrier import moment_of_cut
from pslib.errors import PslibError
from pslib.trainer.progress import Progress
from pslib.wire.messages import NOWHERE, CutReady

TURN_S = 0.2


class CheckpointPause:
    """Gate for batches, closed by a cut; it tells the coordinator when no push is in flight.

    A batch is inside from `JobGate.enter` until its push, a maintenance after it and the end of its lease are
    acknowledged.

    Parameters
    ----------
    client : Client
    progress : Progress
        Has the held leases.

    Attributes
    ----------
    by_rank : bool
        True if all trainers step together: then a closed gate still admits batches up to the
        step that the coordinator names, for which others may already wait.
    """

    def __init__(self, client: Client, progress: Progress) -> None:
        self._client, self._progress = client, progress
        self._changed = threading.Condition()
        self.by_rank = False
        self._cut = 0  # number of the cut that closed it; 0: open
        self._target = -1
        self._held_back = False
        self._job = 0  # the job whose batches are counted
        self._inside = 0
        self._stands = NOWHERE
        self._next_step = 0  # the step after that of the last batch to enter
        self._told: tuple[int, int, bool] | None = None

    def begin_job(self, by_rank: bool) -> JobGate:
        """Return the gate of a new job; drop batches of earlier jobs, however they ended."""
        with self._changed:
            self._job += 1
            self.by_rank, self._inside, self._stands = by_rank, 0, NOWHERE
            return JobGate(self, self._job)

    def enter(self, job: int, step: int, stop: Callable[[], bool]) -> bool:
        """See `JobGate.enter`."""
        while True:
            with self._changed:
                if job != self._job:
                    return False
                if not self._cut or (self.by_rank and step < self._target):
                    self._stands, self._next_step = NOWHERE, step + 1
                    self._inside += 1
                    break
                self._stands = step
            self._tell()
            if stop():
                return False
            with self._changed:
                if self._cut and not (self.by_rank and step < self._target):
                    self._changed.wait(TURN_S)
        self._tell()
        return True

    def ended(self, job: int) -> None:
        """See `JobGate.ended`."""
        with self._changed:
            if job != self._job:
                return
            self._inside -= 1
        self._tell()

    def close(self, cut: int, target: int, held_back: bool = False) -> None:
        """Close the gate for a cut; with ``held_back`` this trainer must not report ready yet."""
        with self._changed:
            if (self._cut, self._target, self._held_back) == (cut, target, held_back):
                return
            self._cut, self._target, self._held_back = cut, target, held_back
            self._changed.notify_all()
        self._tell()

    def stand(self) -> None:
        """Mark this trainer as one that stands before its next step, in no batch: its fit is interrupted."""
        with self._changed:
            self._stands = self._next_step
        self._tell()

    def let_tell(self) -> None:
        """Allow this trainer to report ready."""
        with self._changed:
            self._held_back = False
        self._tell()

    def open(self) -> None:
        """Open the gate."""
        with self._changed:
            self._cut, self._target, self._told = 0, -1, None
            self._changed.notify_all()

    def _report(self) -> tuple[int, int, bool] | None:
        """Return the report that the coordinator lacks, or None."""
        paused = self._inside == 0
        if not self._cut or self._held_back or not (paused or self.by_rank):
            return None
        stands = self._next_step if self._stands == NOWHERE and not paused else self._stands
        report = self._cut, stands, paused
        if report == self._told:
            return None
        self._told = report
        return report

    def _tell(self) -> None:
        with self._changed:
            report = self._report()
        if report is None:
            return
        cut, stands, paused = report
        streams = self._progress.held()
        endpoint = self._client.endpoint
        with endpoint.lock:  # never acquired while this gate's own lock is held
            batches = [endpoint.session.acked_below(one) if endpoint.session else 0 for one in streams]
            if paused and endpoint.session:
                endpoint.session.acknowledged.pause(moment_of_cut(cut))
        message = CutReady(
            self._client.rank,
            self._client.member.incarnation,
            cut,
            stands,
            paused,
            np.asarray(streams, np.uint64),
            np.asarray(batches, np.uint64),
        )
        try:
            endpoint.ask(self._client.member.coordinator, message)
        except PslibError:  # this trainer ends; its silence is detected soon
            return


@dataclass(frozen=True, slots=True)
class JobGate:
    """Gate for batches of one job; acknowledgements after the next job began don't count."""

    gate: CheckpointPause
    number: int

    def enter(self, step: int, stop: Callable[[], bool]) -> bool:
        """Wait until the batch of this step may be pushed; False when ``stop`` or a new job came first."""
        return self.gate.enter(self.number, step, stop)

    def ended(self) -> None:
        """Mark a batch that entered as done."""
        self.gate.ended(self.number)
