"""Scoring: predictions and metrics of batches that are not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.client.client import Client
from pslib.client.pending import PendingPull
from pslib.data.arrow_data import open_data, table_of
from pslib.data.column_types import KeyKinds
from pslib.data.dataset import ParquetData
from pslib.data.reader import LeaseReader
from pslib.data.split import DataPart
from pslib.data.value_checks import has_values
from pslib.errors import ConfigurationError
from pslib.metrics.metrics import EvalResult, ScoreCounts
from pslib.schema import Schema
from pslib.trainer.collective import Job
from pslib.trainer.evaluation.predictions import PredictionFiles
from pslib.trainer.model import TrainableModel
from pslib.trainer.pipeline.compute import ModelThreads
from pslib.trainer.pipeline.dense import DenseLayout

Floats = NDArray[np.float32]
UNKNOWN = {"positives": 0} | dict.fromkeys(("auc", "logloss", "calibration"), float("nan"))
"""Metrics of an evaluation without labels."""
AHEAD = 4
"""Batches whose rows are pulled ahead: no row can be stale."""


def check_label(model: TrainableModel, call: str, instead: str) -> None:
    """Check that the schema has a label to evaluate by: without one all metrics would be nan.

    Parameters
    ----------
    model : TrainableModel
    call, instead : str
        The requested call, and the alternative for a model that ranks items.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if not model.schema.labels:
        told = f"{type(model).__name__} predicts no clicks, as its schema has no label"
        raise ConfigurationError(f"{told}, for {call} to judge it by: if it ranks items, call {instead}")


def task_of(schema: Schema, label: str | None) -> int:
    """Return the index of a label in the schema, from 0; None: the first.

    Raises
    ------
    ConfigurationError
        If the schema has no such label.
    """
    if label is None:
        return 0
    if label not in schema.labels:
        raise ConfigurationError(
            f"label: expected one of {', '.join(schema.labels) or 'no label'}, got {label!r}"
        )
    return schema.labels.index(label)


def said_of(schema: Schema, task: int, name: str) -> dict[str, str]:
    """Return an evaluation record's entries on its data, and on its task where there are several."""
    label = {"label": schema.labels[task]} if len(schema.labels) > 1 else {}
    return label | ({"name": name} if name else {})


def data_of(data: Any, schema: Schema, task: int, key_kinds: KeyKinds, predicted: bool) -> ParquetData:
    """Open data to evaluate. With ``predicted``, the task's label is optional: absent, or without a value.

    Raises
    ------
    DataError
        If a file does not fit, or only some files have that label.
    """
    if not (predicted and schema.labels):
        return open_data(data, schema, key_kinds=key_kinds)
    label = schema.labels[task]
    found = open_data(data, features_of(schema), key_kinds=key_kinds)
    if label not in found.names or not _has_values(data, found, label):
        return found
    return open_data(data, features_of(schema, label), key_kinds=key_kinds)


def _has_values(data: Any, found: ParquetData, label: str) -> bool:
    table = table_of(data.data if isinstance(data, DataPart) else data, [label])
    if table is None:
        return has_values(dict.fromkeys(group.file for group in found.row_groups), label)
    return bool(table.column(label).null_count < len(table))


def features_of(schema: Schema, label: str | None = None) -> Schema:
    """Return a schema with the same features and this label."""
    return Schema(label=label, dense=schema.dense, sparse=schema.sparse, ragged=schema.ragged)


class Scorer:
    """Scorer of batches with the servers' current rows and dense parameters.

    Parameters
    ----------
    model : ModelThreads
    client : Client
    table : str
        Name of the table in batches.
    layout : DenseLayout
        Layout of the model's dense parameters, which are read once, in the constructor.
    step : int
        Step at which rows are read: weight decay outstanding up to it is applied.
    task : int
        Index of the label in the schema, from 0.
    """

    def __init__(
        self,
        model: ModelThreads,
        client: Client,
        table: str,
        layout: DenseLayout,
        step: int,
        task: int = 0,
    ) -> None:
        self._task = task
        self._model, self._client, self._table, self._step = model, client, table, step
        self._kept: list[tuple[Floats, Floats]] = []
        self._dense = layout.views(client.pull({}, dense=True).wait().dense)

    def score(self, batches: Iterator[Batch]) -> ScoreCounts:
        """Count how often each score occurred with each label; `examples` has them one by one."""
        parts: list[ScoreCounts] = []
        self._kept = []
        ahead: list[tuple[Batch, PendingPull]] = []
        for batch in batches:
            ahead.append((batch, self._client.pull({self._table: batch.keys}, step=self._step)))
            if len(ahead) > AHEAD:
                parts.append(self._one(*ahead.pop(0)))
        parts += [self._one(*one) for one in ahead]
        return ScoreCounts.merge(parts)

    def work_at(self, job: Job, reader: LeaseReader, files: PredictionFiles | None) -> EvalResult:
        """Score the examples of all leases, with all other trainers; return the joint result.

        With ``files`` every example's score is written, and its label where the data has one.
        """
        labelled = bool(reader.data.schema.labels)
        if files:
            files.begin(reader.leases)
        for lease in job.leases():
            counts = self.score(reader.batches(0, lease.index))
            if files:
                labels, predictions = self.examples()
                files.write(lease.index, labels if labelled else None, predictions)
            found: dict[str, NDArray[Any]] = {}
            if labelled:
                found = dict(zip(("scores", "positives", "negatives"), counts.to_arrays(), strict=True))
            job.end(lease, found).wait()
        outcome = {**UNKNOWN, **job.outcome()}
        names = ("examples", "positives", "auc", "logloss", "calibration")
        return EvalResult(**{name: outcome[name] for name in names})

    def _one(self, batch: Batch, pull: PendingPull) -> ScoreCounts:
        rows = pull.wait().rows[self._table]
        predicted, labels = self._model.predict(batch, rows, self._dense), batch.every_label
        predicted = predicted[:, self._task] if predicted.ndim == 2 else predicted
        labels = labels[:, self._task] if labels.ndim == 2 else labels
        probabilities = np.ascontiguousarray(predicted, np.float32)
        self._kept.append((labels, probabilities))
        return ScoreCounts.of(probabilities, labels)

    def examples(self) -> tuple[Floats, Floats]:
        """Return labels and probabilities of all examples of the last `score`, ``(n,)`` each, in order."""
        none = np.empty(0, np.float32)
        labels, probabilities = zip(*self._kept, strict=True) if self._kept else ((none,), (none,))
        return np.concatenate(labels).astype(np.float32), np.concatenate(probabilities)
