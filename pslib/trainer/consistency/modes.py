"""The four ways in which trainers keep together, and what each of them is made of.

- ``async``: every trainer goes its own way; it runs ahead of its own pushes by ``staleness`` batches at most.
  With one trainer and staleness 0 training is exact.
- ``sync``: the k-th batches of all trainers are one step (`pslib.trainer.consistency.sync`,
`pslib.shard.sync_steps`).
  Repeatable bit for bit; as slow as the slowest trainer; ends when a trainer dies.
- ``ssp``: like async, but no trainer is more than ``ssp_bound`` batches ahead of the slowest
  (`pslib.trainer.consistency.ssp`).
- ``geo``: every trainer steps a copy of its own and sends what has moved every ``geo_every_batches`` batches
  (`pslib.trainer.consistency.geo`): fewest bytes, and the state of optimizers is the trainer's own.
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
from pslib.trainer.pipeline.row_cache import CachedRows
from pslib.trainer.pipeline.row_source import RowSource, ServerRows
from pslib.trainer.progress import Progress
from pslib.trainer.settings import TrainerSettings

__all__ = ["JobPlan", "Mode", "TrainingMode", "plan_of"]


class JobPlan(Protocol):
    """Which steps the batches of a job are."""

    @property
    def end(self) -> int:
        """Steps of this job and of all before it."""
        ...

    def of(self, lease: int) -> LeasePlan:
        """The plan of one lease."""
        ...


@dataclass(frozen=True, slots=True)
class Mode:
    """What a pipeline needs of the mode: where rows come from, when to go on, how many batches may wait."""

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
    """The steps of a job that is open.

    Parameters
    ----------
    settings
    order, first_epoch, counts
        As for `StepPlan`.
    first_step : int
        Steps of all jobs before it.
    ranks : sequence of int
        Trainers that share the job, where leases go by rank.
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
    """Makes the parts of a mode for each job, and keeps what outlives a job.

    Parameters
    ----------
    settings : TrainerSettings
    client : Client
    table : TableSpec
    dense : DenseSpec
    progress : Progress
        Counts leads and questions.

    Raises
    ------
    ConfigurationError
        When the table or the dense parameters can't be trained in this mode.
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

    def loaded(self, trained: bool) -> None:
        """Rows have come from a checkpoint: a copy has no state for them; ``trained`` ones are not new."""
        if trained:
            self.staleness.skip_warmup()
        self._copy = self._new_copy()

    def of_job(self, job: Job, plan: JobPlan) -> Mode:
        """The parts for one fit."""
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
