"""The plain sequential reference of training: a dict of rows, NumPy, one batch after the other.

It shares with the product only what is not under test here: the readers, the models and the values that
describe tables and optimizers. No server, no client, no pipeline, no kernel of the table.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.metrics import EvalResult, ScoreCounts
from pslib.optimizers import Optimizer
from pslib.tables import text_hash
from rec_models.model import Model
from tests.definitions import DictTable
from tests.definitions_optimizers import full_step


class SequentialTrainer:
    """Trains a model batch by batch; same arguments as ``pslib.Trainer``."""

    def __init__(
        self,
        model: Model,
        *,
        batch_rows: int,
        dense_optimizer: Optimizer,
        seed: int = 0,
        lease_rows: int | None = None,
    ) -> None:
        self.model, self.batch_rows, self.seed, self.lease_rows = model, batch_rows, seed, lease_rows
        self.table = DictTable(model.table(), partition_bits=0)
        self.dense = {name: value.copy() for name, value in model.initial_dense(seed).items()}
        self.dense_optimizer = dense_optimizer
        self.dense_state = {
            name: dense_optimizer.initial_state(value.size) for name, value in self.dense.items()
        }
        self.epochs = 0

    def fit(self, path: Path, epochs: int = 1) -> None:
        data = ParquetData(str(path), self.model.schema)
        lease_rows = self.lease_rows or default_lease_rows(data.rows, self.batch_rows)
        order = Order(self.seed, [group.rows for group in data.row_groups], lease_rows)
        reader = LeaseReader(data, self.model.schema, order, self.batch_rows)
        for epoch in range(self.epochs, self.epochs + epochs):
            for index in range(order.leases(epoch)):
                for number, batch in enumerate(reader.batches(epoch, index)):
                    self._train(batch, text_hash(str(self.seed), str(epoch), str(index), str(number)))
        reader.close()
        self.epochs += epochs

    def _train(self, batch, step_seed: int) -> None:
        result = self.model.loss_and_gradients(batch, self.rows(batch.keys), self.dense, step_seed)
        self.table.push(batch.keys, result.rows_gradient.astype(np.float32))
        for name, gradient in result.dense_gradients.items():
            flat = np.ascontiguousarray(gradient, np.float32).reshape(-1)
            weights, state = self.dense[name].reshape(-1), self.dense_state[name]
            full_step(self.dense_optimizer, weights, state, flat, missed=1)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Rows, or first values of keys that were never trained on."""
        rows = np.empty((keys.size, self.table.spec.dim), np.float32)
        self.table.pull(keys, rows)
        return rows

    def dense_vector(self) -> NDArray[np.float32]:
        """All dense parameters, one after the other."""
        flat = [value.reshape(-1) for value in self.dense.values()]
        return np.concatenate(flat) if flat else np.empty(0, np.float32)

    def saved_rows(self) -> dict[int, bytes]:
        """Weights and state of every row, as bytes: what a checkpoint must hold."""
        return {
            key: np.concatenate([*row.weights, *row.state]).tobytes() for key, row in self.table.table.items()
        }

    def evaluate(self, path: Path) -> EvalResult:
        data = ParquetData(str(path), self.model.schema)
        order = Order(0, [group.rows for group in data.row_groups], data.rows, shuffle=False)
        reader = LeaseReader(data, self.model.schema, order, self.batch_rows)
        parts = []
        for index in range(order.leases(0)):
            for batch in reader.batches(0, index):
                scores = self.model.predict(batch, self.rows(batch.keys), self.dense)
                parts.append(ScoreCounts.of(np.asarray(scores, np.float32), batch.labels))
        reader.close()
        return ScoreCounts.merge(parts).result()
