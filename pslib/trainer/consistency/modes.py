"""Consistency modes: async, sync, ssp and geo, and the parts of each.

- ``async``: trainers are independent; each runs at most ``staleness`` batches ahead of its own pushes.
  With one trainer and staleness 0 training is exact.
- ``sync``: the k-th batches of all trainers are one step (`pslib.trainer.consistency.sync`,
  `pslib.shard.sync_steps`). Repeatable bit for bit; as slow as the slowest trainer; ends when a trainer dies.
- ``ssp``: like async, but no trainer is more than ``ssp_bound`` batches ahead of the slowest
  (`pslib.trainer.consistency.ssp`).
- ``geo``: every trainer steps a local copy and sends its deltas every ``geo_every_batches`` batches
  (`pslib.trainer.consistency.geo`): fewest bytes; optimizer state is local to the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pslib.client.client import Client
from pslib.data.order import Order
from pslib.table.tables import DenseSpec, TableSpec
from pslib.trainer.collective import Job
from pslib.trainer.consistency.geo import GeoCopy, GeoPace, GeoRows
from pslib.trainer.consistency.ssp import SspPace
from pslib.trainer.consistency.sync import SyncPlan, SyncRows
from pslib.trainer.pipeline.pace import AsyncPace, LeasePlan, Pace, StalenessBound, StepPlan
from pslib.trainer.pipeline.row_source import CachedRows, RowSource, ServerRows
from pslib.trainer.progress import Progress
from pslib.trainer.settings import TrainerSettings


class JobPlan(Protocol):
    """Step numbers of the batches of a job."""

    @property
    def end(self) -> int:
        """Number of steps of this job and all earlier ones."""
        ...

    def of(self, lease: int) -> LeasePlan:
        """Return the plan of one lease."""
        ...


@dataclass(frozen=True, slots=True)
class Mode:
    """Parts of a mode for a pipeline: the row source, the pace, and the number of batches that may wait."""

    rows: RowSource
    pace: Pace
    ahead: int


def plan_of(
    settings: TrainerSettings,
    order: Order,
    first_epoch: int,
    counts: list[int],
    first_step: int,
    ranks: Sequence[int],
) -> JobPlan:
    """Return the step plan of an open job.

    Parameters
    ----------
    settings
    order, first_epoch, counts
        As for `StepPlan`.
    first_step : int
        Steps of all jobs before it.
    ranks : sequence of int
        Trainers that share the job, where leases are assigned by rank.
    """
    every = settings.maintain_every_batches
    if settings.consistency != "sync":
        return StepPlan(order, first_epoch, counts, settings.batch_rows, first_step, every)
    rows = [
        order.lease(first_epoch + epoch, index).rows
        for epoch, count in enumerate(counts)
        for index in range(count)
    ]
    return SyncPlan(rows, settings.batch_rows, first_step, every, ranks)


class TrainingMode:
    """Factory for the parts of a mode, one set per job; it keeps the state that outlives a job.

    Parameters
    ----------
    settings : TrainerSettings
    client : Client
    table : TableSpec
    dense : DenseSpec
    progress : Progress
        Counts leads and clock requests.

    Raises
    ------
    ConfigurationError
        If the table or the dense parameters can't be trained in this mode.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        client: Client,
        table: TableSpec,
        dense: DenseSpec,
        progress: Progress,
    ) -> None:
        self._settings, self._client, self._table, self._dense = settings, client, table, dense
        self._progress = progress
        self.staleness = StalenessBound(settings.staleness, settings.warmup_batches)
        self._copy = self._new_copy()

    def _new_copy(self) -> GeoCopy | None:
        settings = self._settings
        if settings.consistency != "geo":
            return None
        return GeoCopy(self._table, self._dense, settings.geo_rows)

    def loaded(self, batches: int) -> None:
        """Reset state after a load: a copy has no state for loaded rows, the warmup goes on.

        Parameters
        ----------
        batches : int
            Batches of this trainer's share in the training that is continued; 0: another training begins.
        """
        self.staleness.go_on(batches)
        self._copy = self._new_copy()

    def of_job(self, job: Job, plan: JobPlan) -> Mode:
        """Build the parts for one fit."""
        make: dict[str, Callable[[Job, JobPlan], Mode]] = {
            "async": self._async,
            "sync": self._sync,
            "ssp": self._ssp,
            "geo": self._geo,
        }
        return make[self._settings.consistency](job, plan)

    def _async(self, job: Job, plan: JobPlan) -> Mode:
        return Mode(self._server_rows(), AsyncPace(self.staleness), self._settings.staleness + 1)

    def _sync(self, job: Job, plan: JobPlan) -> Mode:
        assert isinstance(plan, SyncPlan)
        rows = SyncRows(self._client, self._table, plan, self._settings.wire)
        return Mode(rows, AsyncPace(StalenessBound(0, 0)), 1)

    def _ssp(self, job: Job, plan: JobPlan) -> Mode:
        pace = SspPace(self.staleness, self._settings.ssp_bound, job.tell_clock, self._progress.led)
        return Mode(self._server_rows(), pace, self._settings.staleness + 1)

    def _geo(self, job: Job, plan: JobPlan) -> Mode:
        assert self._copy is not None
        every = self._settings.geo_every_batches
        rows = GeoRows(
            self._client, self._table, self._copy, plan.of, every, self._trainers, self._settings.wire
        )
        ahead = min(self._settings.staleness, every - 1)
        return Mode(rows, GeoPace(ahead, rows), ahead + 1)

    def _server_rows(self) -> RowSource:
        settings = self._settings
        rows = ServerRows(self._client, self._table, settings.wire)
        if settings.cache.age_batches == 0:
            return rows
        counters = self._progress.cache
        return CachedRows(rows, self._table, settings.cache, settings.wire, counters, self._trainers)

    @property
    def _trainers(self) -> int:
        return self._client.joined.config.trainers
