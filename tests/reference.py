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
from pslib.metrics.metrics import EvalResult, ScoreCounts
from pslib.table.optimizers import Optimizer
from pslib.table.policies import STORAGES
from pslib.table.tables import TableSpec, text_hash
from rec_models.model import Model
from tests.support.definitions.optimizers import full_step
from tests.support.definitions.policies import PolicyTable
from tests.support.definitions.table import mix64


def salt_of(stream: int, number: int) -> int:
    """Random bits of a push: a hash of its name."""
    return mix64(mix64(stream) ^ number)


def table_of(spec: TableSpec) -> PolicyTable:
    """The dict that a table is, with all its policies, in one partition."""
    score = (0.0, 0.0) if spec.score is None else (spec.score.nonclick, spec.score.click)
    return PolicyTable(
        spec,
        0,
        spec.narrow_parts,
        storage=STORAGES.index(spec.storage),
        counters=spec.needs_seen | spec.needs_counts << 1,
        admission=(0, 0.0, 0) if spec.admission is None else spec.admission.numbers(),
        promotion=(0, 0.0) if spec.compact is None else spec.compact.promotion(),
        score=score,
    )


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
        table: TableSpec | None = None,
        maintain_every_batches: int = 0,
    ) -> None:
        self.model, self.batch_rows, self.seed, self.lease_rows = model, batch_rows, seed, lease_rows
        self.spec, self.maintain_every = table or model.table(), maintain_every_batches
        self.table = table_of(self.spec)
        self.steps, self.jobs = 0, 1  # collective calls are numbered from 1
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
        leases = 0
        for epoch in range(self.epochs, self.epochs + epochs):
            for index in range(order.leases(epoch)):
                first = self.steps
                for number, batch in enumerate(reader.batches(epoch, index)):
                    seed = text_hash(str(self.seed), str(epoch), str(index), str(number))
                    self._train(batch, seed, salt_of(self.jobs << 32 | leases, number))
                leases += 1
                if self.maintain_every and self.steps // self.maintain_every > first // self.maintain_every:
                    self._maintain()
        reader.close()
        self.epochs += epochs
        self.jobs += 1

    def _maintain(self) -> None:
        if self.spec.decay_factor < 1:
            self.table.decay(self.spec.decay_factor)
        for rule in self.spec.eviction:
            self.table.evict(rule.kind, rule.number, self.steps)

    def _train(self, batch, step_seed: int, salt: int) -> None:
        result = self.model.loss_and_gradients(batch, self.rows(batch.keys), self.dense, step_seed)
        shows, clicks = np.zeros((2, batch.keys.size), np.float32)
        for places, label in zip(batch.sparse, batch.labels, strict=True):
            for place in places:
                shows[place] += 1
                clicks[place] += label
        gradients = result.rows_gradient.astype(np.float32)
        self.table.push(batch.keys, gradients, salt=salt, now=self.steps, shows=shows, clicks=clicks)
        self.steps += 1
        for name, gradient in result.dense_gradients.items():
            flat = np.ascontiguousarray(gradient, np.float32).reshape(-1)
            weights, state = self.dense[name].reshape(-1), self.dense_state[name]
            full_step(self.dense_optimizer, weights, state, flat, missed=1)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Rows, or first values of keys that were never trained on."""
        rows = np.empty((keys.size, self.table.spec.dim), np.float32)
        self.table.pull(keys, rows, self.steps)
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
