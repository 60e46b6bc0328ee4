"""Batch-normalisation statistics: measured when a fit ends, with its parameters.

In training such a layer takes mean and variance from the batch. A prediction must not depend on the other
examples of its request, so it takes them from dense parameters that no gradient changes. Running averages
over several trainers would mix statistics of outdated parameters, so none are kept. When a fit ends, one
trainer takes the first `MEASURED_ROWS` examples of the data that are shuffled together, and runs through the
layers once, without dropout; each layer uses the final statistics of the layers before it. It then adds the
differences to the parameters on the servers, while the others wait: the precise statistics of Wu and Johnson,
arXiv:2105.07576. So the statistics in a checkpoint belong to its weights, under any consistency.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.client.calls import Manner, PushName
from pslib.client.client import Client
from pslib.client.pending import Pulled
from pslib.cluster import Cluster
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.table.tables import text_hash
from pslib.trainer.call_log import Calls
from pslib.trainer.collective import HeldLease, JobSpec
from pslib.trainer.model import TrainableModel
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.trainer.progress import Progress

MEASURED_ROWS = 1 << 14
"""A mean of this many is known to 0.8 % of a deviation; activations take 26 MB a layer of 400 units."""


@runtime_checkable
class NormalisingModel(Protocol):
    """Extra interface of a model with layers that normalise over the batch."""

    def statistics(self) -> tuple[str, ...]:
        """Return the names of the dense parameters that are statistics; empty without such layers."""
        ...

    def measured(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return the statistics' values for these examples."""
        ...


class StatisticsJobs:
    """Measurement jobs for a model's statistics; none for a model without normalising layers.

    Parameters
    ----------
    cluster : Cluster
    progress : Progress
    model : TrainableModel
    layout : DenseLayout
        Layout of the model's dense parameters.
    seed : int
        Seed of the data's order.
    calls : Calls
        Call log of the script.
    """

    def __init__(
        self,
        cluster: Cluster,
        progress: Progress,
        model: TrainableModel,
        layout: DenseLayout,
        seed: int,
        calls: Calls,
    ) -> None:
        self._calls = calls
        self._cluster, self._progress, self._layout, self._seed = cluster, progress, layout, seed
        self._model, self._table = model, model.table().name

    def measure(self, data: ParquetData, epochs: int, step: int) -> None:
        """Run a job of one lease: one trainer measures and sends, the others wait.

        Parameters
        ----------
        data : ParquetData
            The examples come from its largest lease, the first of that size in the order of epoch 0.
        epochs, step : int
            Position of the training; rows are read at this step.
        """
        model = self._model
        if not isinstance(model, NormalisingModel) or not model.statistics():
            return
        client = self._cluster.client
        fingerprint = text_hash("measure", str(data.fingerprint), str(epochs), str(step))
        spec = JobSpec("measure", fingerprint, {"epoch": epochs}, np.zeros(1, np.uint32))
        job = self._calls.open(client, self._progress, spec)
        for lease in job.leases():
            batch = self._first_examples(data)
            pulled = client.pull({self._table: batch.keys}, dense=True, step=step).wait()
            missing = self._missing(model, batch, pulled)
            self._add(client, missing, lease, step)
            job.end(lease).wait()

    @staticmethod
    def _add(client: Client, missing: NDArray[np.float32], lease: HeldLease, step: int) -> None:
        """Add each statistic once: a trainer that was silent must not repeat its successor's addition."""
        with client.endpoint.lock:
            client.session.open_stream(lease.stream, lease.first_batch)
        name = PushName(lease.stream, 0, lease.epoch)
        client.push({}, missing, name, step=step, manner=Manner(delta=True)).wait()
        with client.endpoint.lock:
            client.session.close_stream(lease.stream)

    def _first_examples(self, data: ParquetData) -> Batch:
        lease_rows = default_lease_rows(data.rows, MEASURED_ROWS)
        order = Order(self._seed, [group.rows for group in data.row_groups], lease_rows)
        # Not the first one: a lease lies within one window, which may be a row group of one row.
        first = max(range(order.leases(0)), key=lambda i: order.lease(0, i).rows)
        with closing(LeaseReader(data, self._model.schema, order, MEASURED_ROWS)) as reader:
            return next(iter(reader.batches(0, first)))

    def _missing(self, model: NormalisingModel, batch: Batch, pulled: Pulled) -> NDArray[np.float32]:
        """Return the (length,) differences to add to the dense parameters."""
        dense = self._layout.views(pulled.dense)
        missing = np.zeros(self._layout.length, np.float32)
        views = self._layout.views(missing)
        for name, value in model.measured(batch, pulled.rows[self._table], dense).items():
            views[name][...] = value - dense[name]
        return missing
