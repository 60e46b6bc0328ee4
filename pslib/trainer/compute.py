"""One training step: rows in, loss and gradients out, counted and pushed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pslib.client import PendingPush
from pslib.protocol.client_session import PushName
from pslib.trainer.dense import DenseLayout
from pslib.trainer.model import TrainableModel
from pslib.trainer.pipeline import Prefetched
from pslib.trainer.progress import Progress
from pslib.trainer.rows import Gradients, RowSource

__all__ = ["Computer"]


class Computer:
    """Computes the steps of a `fit`.

    Parameters
    ----------
    model : TrainableModel
    layout : DenseLayout
        Of the model's dense parameters.
    rows : RowSource
        Where gradients go.
    progress : Progress
        Counts every batch.
    step_seed : callable
        Seed of one step's dropout.
    """

    def __init__(
        self,
        model: TrainableModel,
        layout: DenseLayout,
        rows: RowSource,
        progress: Progress,
        step_seed: Callable[[Prefetched], int],
    ) -> None:
        self._model, self._layout, self._rows = model, layout, rows
        self._progress, self._step_seed = progress, step_seed

    def train(self, item: Prefetched) -> PendingPush | None:
        """One step of one batch, when its rows are here; its push is on its way then."""
        pulled = item.pull.wait()
        views = self._layout.views(pulled.dense)
        step = self._model.loss_and_gradients(item.batch, pulled.rows, views, self._step_seed(item))
        self._progress.trained(step.loss, step.logits, item.batch.labels, item.staleness)
        gradients = Gradients(
            np.ascontiguousarray(step.rows_gradient, np.float32), self._layout.flatten(step.dense_gradients)
        )
        name = PushName(item.lease.stream, item.number, item.lease.epoch)
        return self._rows.push(item.batch, pulled, gradients, name, item.moment)
