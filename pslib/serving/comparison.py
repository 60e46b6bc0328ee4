"""Comparison of a running server of models with a checkpoint: both score the same rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.data.dataset import ParquetData, open_parquet
from pslib.data.parquet_files import group_batches
from pslib.errors import ConfigurationError, DataError
from pslib.metrics.metrics import EvalResult, ScoreCounts
from pslib.scoring import LoadedModel
from pslib.scoring.loaded_model import BATCH_ROWS
from pslib.serving.http_client import BusyError, ask
from pslib.serving.repository import number_of
from pslib.storage import shown
from pslib.trainer.evaluation.scoring import features_of
from pslib.trainer.retrieval.towers import whole_batches

ROWS = 500
"""Rows of a request, below the default bound of a server."""
SAME = 1e-5
"""Predictions that differ by less are the same: a batch of another size rounds its sums otherwise."""
TRIES = 30
RETRY_S = 1.0
"""Pause after a 503, as its Retry-After says."""

Score = Callable[[list[dict[str, Any]]], tuple[NDArray[np.float32], str]]
"""Asks a server for the predictions of records; returns them and the version that made them."""


@dataclass(slots=True)
class Comparison:
    """Differences between the predictions of a server and those of a checkpoint.

    Attributes
    ----------
    rows : int
    version : str
        Of the checkpoint, as a server names it.
    versions : dict of str to int
        Rows by the version that the server answered with.
    largest, mean : float
        Absolute difference of two predictions of a row.
    same_share : float
        Share of rows whose predictions differ by less than 1e-5.
    offline, served : EvalResult or None
        Metrics of both on the first label, or the chosen one; None where the data has no label.
    """

    rows: int = 0
    version: str = ""
    versions: dict[str, int] = field(default_factory=dict)
    largest: float = 0.0
    mean: float = 0.0
    same_share: float = 1.0
    offline: EvalResult | None = None
    served: EvalResult | None = None

    @property
    def is_other_version(self) -> bool:
        """Return True if another version than the checkpoint's made some of the answers."""
        return any(version != self.version for version in self.versions)

    @property
    def agrees(self) -> bool:
        """Return True unless the server has the checkpoint's version alone, and other predictions."""
        return self.is_other_version or self.same_share == 1


def scorer_at(url: str, model: str | None, pause: Callable[[float], None]) -> Score:
    """Return a function that asks a server by ``POST /predict``, again where it has too much to do."""
    path = "/predict" if model is None else f"/predict?model={quote(model, safe='')}"

    def score(records: list[dict[str, Any]]) -> tuple[NDArray[np.float32], str]:
        for left in reversed(range(TRIES)):
            try:
                answer = ask(url, path, records)
                break
            except BusyError:
                if not left:
                    raise
            pause(RETRY_S)
        try:
            return np.array(answer["predictions"], np.float32), str(answer["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{url}: expected predictions of pslib serve there") from error

    return score


def compare(model: LoadedModel, data: Sequence[str], score: Score, task: int = 0) -> Comparison:
    """Score the rows of data files by a server and by a checkpoint.

    Parameters
    ----------
    model : LoadedModel
        Of the checkpoint.
    data : sequence of paths
        The metrics need its label.
    score : callable
        Asks the server.
    task : int
        Place of the label in the schema, for metrics.

    Raises
    ------
    ConfigurationError
        If the model ranks items, or the server has another one.
    DataError
        If the data does not fit the schema, or a value has no form in JSON.
    """
    offline, counts, parts = model.predict(list(data)), Counter[str](), []
    for records in _records(model, data):
        scores, version = score(records)
        if scores.shape != (len(records), *offline.shape[1:]):
            expected = "x".join(map(str, (len(records), *offline.shape[1:])))
            raise ConfigurationError(
                f"--against: expected {expected} predictions of {type(model.model).__name__}, got "
                f"{'x'.join(map(str, scores.shape))}; name its model by --against-model"
            )
        counts[version] += len(records)
        parts.append(scores)
    served = np.concatenate(parts) if parts else offline
    apart = np.abs(offline - served).reshape(len(offline), -1).max(axis=1, initial=0.0)
    found = Comparison(
        rows=len(offline), version=number_of(model.path, model), versions=dict(sorted(counts.items()))
    )
    if found.rows:
        found.largest, found.mean = float(apart.max()), float(apart.mean())
        found.same_share = float((apart < SAME).mean())
        found.offline, found.served = _metrics(model, data, task, offline, served)
    return found


def _records(model: LoadedModel, data: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """Yield the columns that the model reads, of all rows in their order, as records of requests."""
    features = features_of(model.schema)
    opened = ParquetData(list(data), features, may_be_empty=True, key_kinds=dict(model.key_kinds))
    for file, _ in groupby(group.file for group in opened.row_groups):
        try:
            with closing(open_parquet(file)) as source:
                names = [name for name in source.schema_arrow.names if name in features.columns]
                for group in range(source.num_row_groups):
                    for batch in group_batches(source, group, names, ROWS):
                        records = batch.to_pylist()
                        json.dumps(records)
                        yield records
        except TypeError as error:
            raise DataError(f"{shown(file)}: a request has no form for a value of it: {error}") from error
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{shown(file)}: can't be read: {error}") from error


def _metrics(
    model: LoadedModel,
    data: Sequence[str],
    task: int,
    offline: NDArray[np.float32],
    served: NDArray[np.float32],
) -> tuple[EvalResult, EvalResult] | tuple[None, None]:
    """Return the metrics of both, or none where the data has no label."""
    features = ParquetData(list(data), features_of(model.schema), key_kinds=dict(model.key_kinds))
    if not set(model.schema.labels) <= features.names:
        return None, None
    opened = ParquetData(list(data), model.schema, key_kinds=dict(model.key_kinds))
    labels = _of_task(np.concatenate([one.every_label for one in whole_batches(opened, BATCH_ROWS)]), task)
    found = [ScoreCounts.of(_of_task(one, task), labels).result() for one in (offline, served)]
    return found[0], found[1]


def _of_task(values: NDArray[np.float32], task: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(values[:, task]) if values.ndim == 2 else values
