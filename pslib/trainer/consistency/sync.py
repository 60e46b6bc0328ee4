"""Synchronous training: assignment of batches to common steps, and pushes that name their step.

Leases are assigned by rank, so the ``k``-th batch of each trainer is known in advance: together they are step
``k``. Its contributors are the trainers that have a ``k``-th batch. All of this is a function of the lease
plan and of the ranks, which the coordinator fixes when the job is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pslib.client.calls import Manner
from pslib.client.client import Client
from pslib.client.pending import PendingPush
from pslib.table.tables import TableSpec
from pslib.table.wire_format import FLOAT32, WireFormat
from pslib.trainer.pipeline.pace import LeasePlan
from pslib.trainer.pipeline.row_source import ComputedBatch, ServerRows


class SyncPlan:
    """Step plan of one job whose leases are assigned by rank.

    Parameters
    ----------
    lease_rows : sequence of int
        Examples of each lease, through all epochs of the job.
    batch_rows : int
        Examples of a batch.
    first_step : int
        Number of steps of all jobs before it.
    maintain_every : int
        The table is maintained after a step whose number, from 1, is a multiple of this; 0: never.
    ranks : sequence of int
        The trainers, ascending: lease ``i`` belongs to the ``i mod n``-th of them.

    Examples
    --------
    >>> plan = SyncPlan([10, 4, 3], batch_rows=4, first_step=0, maintain_every=0, ranks=(0, 1))
    >>> plan.of(2), plan.contributors(0), plan.contributors(1), plan.end
    (LeasePlan(first_step=3, batches=1, maintained=False), (0, 1), (0,), 4)
    >>> plan.share(0, 0), plan.share(1, 0)
    (0.5, 0.5)
    """

    def __init__(
        self,
        lease_rows: Sequence[int],
        batch_rows: int,
        first_step: int,
        maintain_every: int,
        ranks: Sequence[int],
    ) -> None:
        self.first_step, self._every, self._batch_rows = first_step, maintain_every, batch_rows
        self.ranks = tuple(ranks)
        rows = np.asarray(lease_rows, np.int64)
        batches = -(-rows // batch_rows)
        self._rows, self._batches = rows, batches
        self._begins = np.zeros(rows.size, np.int64)
        self._ends = {}
        for place, rank in enumerate(self.ranks):
            ends = np.cumsum(batches[place :: len(self.ranks)])
            self._begins[place :: len(self.ranks)] = ends - batches[place :: len(self.ranks)]
            self._ends[rank] = ends

    @property
    def end(self) -> int:
        """Number of steps of this job and all earlier ones."""
        return self.first_step + max(self._steps(rank) for rank in self.ranks)

    def of(self, lease: int) -> LeasePlan:
        """Return the plan of one lease; maintenance is part of steps."""
        return LeasePlan(self.first_step + int(self._begins[lease]), int(self._batches[lease]))

    def contributors(self, step: int) -> tuple[int, ...]:
        """Return the ranks whose batches make a step."""
        return tuple(rank for rank in self.ranks if step - self.first_step < self._steps(rank))

    def share(self, rank: int, step: int) -> float:
        """Return the share of a step's examples that is in this rank's batch."""
        rows = {one: self._batch_rows_of(one, step - self.first_step) for one in self.contributors(step)}
        return rows[rank] / sum(rows.values())

    def maintains(self, step: int) -> bool:
        """Tell whether tables are maintained after a step."""
        return self._every > 0 and (step + 1) % self._every == 0

    def _steps(self, rank: int) -> int:
        ends = self._ends[rank]
        return int(ends[-1]) if ends.size else 0

    def _batch_rows_of(self, rank: int, step: int) -> int:
        """Return the examples of a rank's batch number ``step`` of this job."""
        nth = int(np.searchsorted(self._ends[rank], step, side="right"))
        lease = self.ranks.index(rank) + nth * len(self.ranks)
        number = step - int(self._begins[lease])
        return int(min(self._batch_rows, self._rows[lease] - number * self._batch_rows))


class SyncRows(ServerRows):
    """Row source of sync: rows from servers, gradients to a step shared by all contributors.

    A batch's gradients are those of its mean loss. Weighted by the batch's share of the step's examples,
    their sum is the gradient of the mean loss over all examples of the step, also where batches differ in
    length.

    Parameters
    ----------
    client : Client
    table : TableSpec
        The table that batches name.
    plan : SyncPlan
    wire : WireFormat
        Wire types of rows, gradients and dense parameters.
    """

    def __init__(self, client: Client, table: TableSpec, plan: SyncPlan, wire: WireFormat = FLOAT32) -> None:
        super().__init__(client, table, wire)
        self._plan = plan

    def push(self, computed: ComputedBatch) -> PendingPush:
        """Push this trainer's contribution to a step."""
        rank, step = self._client.rank, computed.moment.step
        contributors = self._plan.contributors(step)
        if len(contributors) > 1:
            share = np.float32(self._plan.share(rank, step))
            computed = replace(computed, rows=computed.rows * share, dense=computed.dense * share)
        return self._send(
            computed, Manner(computed.rate, False, rank, contributors, self._plan.maintains(step))
        )
