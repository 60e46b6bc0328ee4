"""One `fit`: the examples of its leases, and their way through the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from pslib.batch import Batch
from pslib.client.client import Client
from pslib.data.dataset import ParquetData
from pslib.data.order import Order
from pslib.data.reader import LeaseReader
from pslib.process.interruption import Interruption
from pslib.trainer.checkpoints.pause import CheckpointPause
from pslib.trainer.collective import HeldLease, Job
from pslib.trainer.consistency.modes import JobPlan, Mode
from pslib.trainer.model import TrainableModel
from pslib.trainer.pipeline.compute import Computer, ModelThreads
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.trainer.pipeline.pace import epoch_and_index, step_seed
from pslib.trainer.pipeline.pipeline import Maintain, Pipeline
from pslib.trainer.progress import Progress
from pslib.trainer.retrieval.towers import sampler_of
from pslib.trainer.settings import TrainerSettings
from pslib.trainer.training_history import TrainingHistory


@dataclass(frozen=True, slots=True)
class FitTools:
    """Tools shared by all fits of a trainer."""

    client: Client
    model: TrainableModel
    layout: DenseLayout
    progress: Progress
    history: TrainingHistory
    settings: TrainerSettings
    gate: CheckpointPause
    maintain: Maintain
    between: Callable[[], None]
    """Called between two batches."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Training job: its data, order and leases.

    Attributes
    ----------
    data : ParquetData
    order : Order
    first_epoch : int
        Epochs of all fits before it.
    counts : list of int
        Leases of each of its epochs.
    rate : float
        Factor of the learning rates.
    """

    data: ParquetData
    order: Order
    first_epoch: int
    counts: list[int]
    rate: float = 1.0

    def train(
        self,
        tools: FitTools,
        job: Job,
        mode: Mode,
        steps: JobPlan,
        began_s: float,
        interruption: Interruption,
    ) -> None:
        """Train on this trainer's share, until all leases of the job are done, or it is interrupted."""
        settings = tools.settings
        sampler = sampler_of(tools.model, self.data, settings.seed)
        reader = LeaseReader(self.data, tools.model.schema, self.order, settings.batch_rows, sampler)

        def batches_of(lease: HeldLease) -> Iterator[Batch]:
            index = epoch_and_index(self.counts, lease.index)[1]
            first = min(lease.first_batch, steps.of(lease.index).batches)
            return reader.batches(self._epoch_of(lease), index, first)

        pipeline = Pipeline(
            tools.client,
            job,
            batches_of,
            lambda lease: steps.of(lease.index),
            tools.maintain,
            mode.rows,
            mode.pace,
            ahead=mode.ahead,
            gate=tools.gate.begin_job(settings.consistency == "sync"),
            interruption=interruption,
            times=tools.progress.times,
            began_s=began_s,
        )
        tools.progress.keys.use_fields(tools.model.schema)
        threads, overlap = settings.compute_threads, pipeline.pushes_behind
        with closing(reader), ModelThreads(tools.model, threads, overlap, settings.products) as model:
            computer = Computer(
                model,
                tools.layout,
                mode.rows,
                tools.progress,
                lambda item: step_seed(
                    settings.seed, self.first_epoch, self.counts, item.lease.index, item.number
                ),
                lambda step, staleness: self.rate * settings.rate(step, staleness),
                lambda item: tools.history.before_batch(self._epoch_of(item.lease)),
                tools.between,
            )
            pipeline.run(computer)

    def _epoch_of(self, lease: HeldLease) -> int:
        """Return the number of epochs before that of a lease."""
        return self.first_epoch + epoch_and_index(self.counts, lease.index)[0]
