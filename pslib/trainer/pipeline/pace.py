"""When a batch may be pulled: how far a trainer may run ahead."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pslib.data.order import Order
from pslib.table.tables import text_hash
from pslib.trainer.collective import HeldLease

__all__ = ["AsyncPace", "LeasePlan", "Pace", "StalenessBound", "StepPlan", "epoch_and_index", "step_seed"]


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """Batches of one lease, and whether its table is maintained when all of them are applied.

    Attributes
    ----------
    first_step : int
        Number of the lease's first batch among all batches of the training, from 0.
    batches : int
        How many they are; also the number of the maintenance in the lease's stream.
    maintained : bool
    """

    first_step: int
    batches: int
    maintained: bool = False


class StepPlan:
    """The steps of one job.

    Parameters
    ----------
    order : Order
        Of its data.
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
        """Batches of this job and of all before it."""
        return int(self._ends[-1])

    def of(self, lease: int) -> LeasePlan:
        """The plan of one lease, counted through all epochs of the job."""
        first, end = int(self._ends[lease]), int(self._ends[lease + 1])
        passes = self._every > 0 and end // self._every > first // self._every
        return LeasePlan(first, end - first, passes)


def epoch_and_index(counts: Sequence[int], lease: int) -> tuple[int, int]:
    """Epoch, and lease in it, of a job's lease; ``counts`` are the leases of each epoch."""
    for epoch, count in enumerate(counts):
        if lease < count:
            return epoch, lease
        lease -= count
    raise IndexError(f"lease must be below {sum(counts)}")


def step_seed(seed: int, first_epoch: int, counts: Sequence[int], lease: int, number: int) -> int:
    """Seed of one step's dropout: by its place in the training, so that a loaded one goes on the same."""
    epoch, index = epoch_and_index(counts, lease)
    return text_hash(*map(str, (seed, first_epoch + epoch, index, number)))


class StalenessBound:
    """A bound in batches that rises evenly from 0 to ``bound`` over ``warmup_batches``.

    Batches are whole, so it rises in the mean: where it stands at 0.3, three of ten batches may run ahead by
    one, as evenly spread as can be, and in a run of the same settings the same ones.

    Parameters
    ----------
    bound : int
        Where it ends, >= 0.
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
        """How many batches ahead the next one may be."""
        if self._begun >= self.warmup_batches:
            return self.bound
        return self._sum(self._begun + 1) - self._sum(self._begun)

    def _sum(self, batches: int) -> int:
        """How far so many first batches may run ahead, all together: whole, so what is left over waits."""
        return self.bound * batches * (batches - 1) // (2 * self.warmup_batches)

    def batch_begun(self) -> None:
        """Count one batch that has begun."""
        self._begun += 1

    def skip_warmup(self) -> None:
        """A trained model goes on: nothing is new any more."""
        self._begun = max(self._begun, self.warmup_batches)


TURN_S = 0.2


class Pace(Protocol):
    """Lets batches through, in their order, and hears when they are applied."""

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Wait until this batch may be pulled; called in the puller's thread.

        Returns
        -------
        int or None
            How many earlier batches of this trainer the pull may not see; None when ``over`` was set first.
        """
        ...

    def applied(self) -> None:
        """One more batch is applied everywhere; called in any thread, must not wait."""
        ...


class AsyncPace:
    """A batch begins when no more batches are on their way than it may run ahead.

    It is on its way from its pull until its push is applied everywhere, so with staleness 0 every pull sees
    every earlier push.

    Parameters
    ----------
    bound : StalenessBound
        How many batches the next one may run ahead; it rises while the trainer warms up.
    """

    def __init__(self, bound: StalenessBound) -> None:
        self._bound = bound
        self._changed = threading.Condition()
        self._on_their_way = 0

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Wait for earlier batches; who may not go on has not begun."""
        with self._changed:
            while self._on_their_way > self._bound.now:
                if not self._changed.wait(TURN_S) and over.is_set():
                    return None
            self._bound.batch_begun()
            self._on_their_way += 1
            return self._on_their_way - 1

    def applied(self) -> None:
        """One less is on its way: who waits looks again."""
        with self._changed:
            self._on_their_way -= 1
            self._changed.notify()
