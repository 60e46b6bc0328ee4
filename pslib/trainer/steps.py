"""Which step of the whole training each batch is: a function of (lease, batch), on whichever trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pslib.data.order import Order
from pslib.table.tables import text_hash

__all__ = ["LeasePlan", "StepPlan", "epoch_and_index", "step_seed"]


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
