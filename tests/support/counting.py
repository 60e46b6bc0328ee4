"""A model that counts: after training, a row says how often its key was trained on, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.schema import Schema
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec

SCHEMA = Schema(label="label", dense=["score"], sparse=["id", "same"])
"""``id`` is another one in every example; ``same`` is the same in all."""
STEP = SGD(1.0)


@dataclass(frozen=True)
class CountStep:
    loss: float
    logits: NDArray[Any]
    rows_gradient: NDArray[Any]
    dense_gradients: dict[str, NDArray[Any]]


class CountingModel:
    """Adds 1 to the row of a key each time that it occurs, and the batch's size to each dense parameter."""

    def __init__(
        self,
        on_step: Callable[[Batch, NDArray[Any]], None] | None = None,
        schema: Schema = SCHEMA,
        dense_length: int = 1,
    ) -> None:
        self.schema, self.dense_length = schema, dense_length
        self._on_step = on_step

    def table(self) -> TableSpec:
        return TableSpec("counts", (PartSpec("n", 1, STEP, Constant(0.0)),))

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"examples": (self.dense_length,)}

    def initial_dense(self, seed: int) -> dict[str, NDArray[np.float32]]:
        return {"examples": np.zeros(self.dense_length, np.float32)}

    def loss_and_gradients(
        self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]], step_seed: int
    ) -> CountStep:
        if self._on_step:
            self._on_step(batch, rows)
        seen = np.bincount(batch.sparse.reshape(-1), minlength=batch.keys.size)
        gradient = -seen.astype(np.float32)[:, None]
        examples = np.full(self.dense_length, -len(batch), np.float32)
        return CountStep(0.5, np.zeros(len(batch), np.float32), gradient, {"examples": examples})

    def predict(self, batch: Batch, rows: NDArray[Any], dense: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The column ``score``: figures can be computed from the data alone."""
        return batch.dense[:, 0]


def write_examples(
    path: Path, rows: int, *, first: int = 0, row_group_rows: int = 40, labels: NDArray[Any] | None = None
) -> Path:
    """Examples ``first .. first + rows - 1``; returns the path."""
    numbers = np.random.default_rng(first + rows)
    table = pa.table(
        {
            "label": numbers.integers(0, 2, rows) if labels is None else labels,
            "score": np.round(numbers.random(rows), 2).astype(np.float32),
            "id": np.arange(first, first + rows, dtype=np.int64),
            "same": np.full(rows, 7, np.int64),
        }
    )
    pq.write_table(table, path, row_group_size=row_group_rows)
    return path
