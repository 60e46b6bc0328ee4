"""Models of queries and items in PyTorch, trained on the very batches that pslib trains on.

The twin starts with the first values of pslib's rows and dense parameters, goes through the same leases in
the same order with the same negatives, and steps by Adagrad (rows) and Adam (dense parameters), whose
definitions are the same in both. Its result is ranked by the same code. Losses are those of
``tests/support/models/matching_twins.py``, which tests hold against pslib's own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.data.dataset import ParquetData
from pslib.data.item_catalog import catalogue_of
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.metrics.ranking import RankResult, result_of_ranks
from pslib.trainer.pipeline.pace import step_seed
from pslib.trainer.retrieval.retrieval import Ranker
from pslib.trainer.retrieval.towers import sampler_of, sides_of, whole_batches

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.models.matching_twins import TWINS

__all__ = ["TorchTwin"]

DENSE_RATE = 0.001


class TorchTwin:
    """A model's parameters in PyTorch.

    Parameters
    ----------
    name : str
        Name of the model.
    model : MatchingModel
        Without dropout; its rows step by Adagrad.
    train : Path
    client : Client
        Client of a cluster with the model's untrained table, the source of first values.
    batch_rows, seed : int
        As of the trainer.
    """

    def __init__(self, name: str, model: Any, train: Path, client: Any, batch_rows: int, seed: int) -> None:
        self._loss, self._model, self._seed = TWINS[name], model, seed
        data = ParquetData([str(train)], model.schema)
        fields = (*model.schema.sparse, *model.schema.ragged)
        self._keys = np.unique(np.concatenate([catalogue_of(data, field)[0] for field in fields]))
        table = model.table()
        self._first = lambda keys: client.pull({table.name: keys}).wait().rows[table.name]
        self._rows = torch.tensor(self._first(self._keys), requires_grad=True)
        shapes = model.initial_dense(seed)
        self._dense = {key: torch.tensor(value, requires_grad=True) for key, value in shapes.items()}
        of_rows = table.parts[0].optimizer
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adagrad(
                [self._rows],
                of_rows.learning_rate,
                initial_accumulator_value=of_rows.initial_accumulator,
                eps=of_rows.epsilon,
            )
        ]
        if self._dense:
            self._optimizers.append(torch.optim.Adam(self._dense.values(), DENSE_RATE))
        lease_rows = default_lease_rows(data.rows, batch_rows)
        self._order = Order(seed, [group.rows for group in data.row_groups], lease_rows)
        sampler = sampler_of(model, data, seed)
        self._reader = LeaseReader(data, model.schema, self._order, batch_rows, sampler)

    def epoch(self, number: int) -> float:
        """Train one epoch; its mean loss."""
        losses = []
        leases = self._order.leases(number)
        for lease in range(leases):
            for place, batch in enumerate(self._reader.batches(number, lease)):
                seed = step_seed(self._seed, number, [leases], lease, place)
                losses.append(self._step(batch, seed))
        return float(np.mean(losses))

    def _step(self, batch: Batch, seed: int) -> float:
        places = torch.from_numpy(np.searchsorted(self._keys, batch.keys))
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        rows = self._rows[places]
        loss = self._loss(torch, self._model, batch, self._model.schema, rows, self._dense, seed)
        loss.backward()
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.item()

    # --- ranking ------------------------------------------------------------------------------------------

    def rank(self, test: Path, items: Path, at: tuple[int, ...], history: str | None) -> RankResult:
        """Rank like `pslib.Trainer.rank`, without the items of an example's history."""
        sides = sides_of(self._model)
        examples = ParquetData([str(test)], sides.example_schema(history, [sides.goal(None)]))
        ranker = Ranker(sides, sides.items([str(items)], self), self, history, exclude_seen=True)
        return result_of_ranks(ranker.rank(whole_batches(examples, 512)), at)

    def item_vectors(self, items: Path) -> NDArray[Any]:
        """(V, D) vectors of items, in their order."""
        sides = sides_of(self._model)
        batches = whole_batches(ParquetData([str(items)], sides.item_schema), 512)
        return np.concatenate([sides.item_vectors(batch, self) for batch in batches])

    @property
    def dense(self) -> dict[str, NDArray[Any]]:
        """Dense parameters by name."""
        return {key: value.detach().numpy() for key, value in self._dense.items()}

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Rows of keys; first values for those that no example of the training has."""
        places = np.minimum(np.searchsorted(self._keys, keys), self._keys.size - 1)
        known = self._keys[places] == keys
        return np.where(known[:, None], self._rows.detach().numpy()[places], self._first(keys))
