"""Pace: bounds how far a trainer's pulls run ahead of its pushes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pslib.data.order import Order
from pslib.table.tables import text_hash
from pslib.trainer.collective import HeldLease


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """Batches of one lease, and whether its table is maintained when all are applied.

    Attributes
    ----------
    first_step : int
        Number of the lease's first batch among all batches of the training, from 0.
    batches : int
        Number of batches; also the number of the maintenance in the lease's stream.
    maintained : bool
    """

    first_step: int
    batches: int
    maintained: bool = False


class StepPlan:
    """Step plan of one job.

    Parameters
    ----------
    order : Order
        Order of its data.
    first_epoch : int
        The job's first epoch.
    counts : list of int
        Leases of each of its epochs.
    batch_rows : int
        Examples of a batch.
    first_step : int
        Batches of all jobs before it.
    maintain_every : int
        A lease ends with a maintenance when the number of steps passes a multiple of this within it; 0: none
        does.
    """

    def __init__(
        self,
        order: Order,
        first_epoch: int,
        counts: list[int],
        batch_rows: int,
        first_step: int,
        maintain_every: int = 0,
    ) -> None:
        batches = [
            -(-order.lease(first_epoch + epoch, index).rows // batch_rows)
            for epoch, count in enumerate(counts)
            for index in range(count)
        ]
        self._ends = first_step + np.cumsum([0, *batches])
        self._every = maintain_every

    @property
    def end(self) -> int:
        """Number of batches of this job and all earlier ones."""
        return int(self._ends[-1])

    def of(self, lease: int) -> LeasePlan:
        """Return the plan of one lease, counted through all epochs of the job."""
        first, end = int(self._ends[lease]), int(self._ends[lease + 1])
        passes = self._every > 0 and end // self._every > first // self._every
        return LeasePlan(first, end - first, passes)


def epoch_and_index(counts: Sequence[int], lease: int) -> tuple[int, int]:
    """Return the epoch, and the index in it, of a job's lease; ``counts`` are the leases of each epoch."""
    for epoch, count in enumerate(counts):
        if lease < count:
            return epoch, lease
        lease -= count
    raise IndexError(f"lease must be below {sum(counts)}")


def step_seed(seed: int, first_epoch: int, counts: Sequence[int], lease: int, number: int) -> int:
    """Return the seed of one step's dropout: by position in the training, so that a resumed one matches."""
    epoch, index = epoch_and_index(counts, lease)
    return text_hash(*map(str, (seed, first_epoch + epoch, index, number)))


class StalenessBound:
    """Staleness bound in batches that rises evenly from 0 to ``bound`` over ``warmup_batches``.

    Batches are whole, so it rises in the mean: at 0.3, three of ten batches may run ahead by one, spread as
    evenly as possible, and the same ones in every run with the same settings.

    Parameters
    ----------
    bound : int
        Final bound, >= 0.
    warmup_batches : int
        Batches until then; 0 means the full bound from the first batch on.

    Examples
    --------
    >>> bound, ahead = StalenessBound(1, warmup_batches=12), []
    >>> for _ in range(14):
    ...     ahead.append(bound.now)
    ...     bound.batch_begun()
    >>> ahead
    [0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1]
    """

    def __init__(self, bound: int, warmup_batches: int) -> None:
        self.bound, self.warmup_batches = bound, warmup_batches
        self._begun = 0

    @property
    def now(self) -> int:
        """Current bound for the next batch."""
        if self._begun >= self.warmup_batches:
            return self.bound
        return self._sum(self._begun + 1) - self._sum(self._begun)

    def _sum(self, batches: int) -> int:
        """Return the summed bound of this many first batches, rounded down."""
        return self.bound * batches * (batches - 1) // (2 * self.warmup_batches)

    def batch_begun(self) -> None:
        """Count one started batch."""
        self._begun += 1

    def go_on(self, batches: int) -> None:
        """Count the batches of an earlier training, which this one continues."""
        self._begun = max(self._begun, batches)


TURN_S = 0.2


class Pace(Protocol):
    """Interface that admits batches in order, and is told when they are applied."""

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Wait until this batch may be pulled; called in the puller's thread.

        Returns
        -------
        int or None
            Number of this trainer's earlier batches that the pull may miss; None when ``over`` was set first.
        """
        ...

    def applied(self) -> None:
        """Count a batch as applied everywhere; called in any thread, must not wait."""
        ...


class AsyncPace:
    """Asynchronous pace: a batch begins when no more batches are in flight than the bound allows.

    A batch is in flight from its pull until its push is applied everywhere, so with staleness 0 every pull
    sees every earlier push.

    Parameters
    ----------
    bound : StalenessBound
        Bound on the batches that the next one may run ahead; it rises during warmup.
    """

    def __init__(self, bound: StalenessBound) -> None:
        self._bound = bound
        self._changed = threading.Condition()
        self._on_their_way = 0

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Wait for earlier batches; a batch that is not admitted is not counted."""
        with self._changed:
            while self._on_their_way > self._bound.now:
                if not self._changed.wait(TURN_S) and over.is_set():
                    return None
            self._bound.batch_begun()
            self._on_their_way += 1
            return self._on_their_way - 1

    def applied(self) -> None:
        """Count one batch less in flight and wake waiters."""
        with self._changed:
            self._on_their_way -= 1
            self._changed.notify()
