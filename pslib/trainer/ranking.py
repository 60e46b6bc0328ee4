"""Ranks all items for each example and looks where its target stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.client import Client
from pslib.data.dataset import ParquetData
from pslib.data.negatives import NegativeSampler, Sampling, item_counts
from pslib.data.reader import LeaseReader
from pslib.errors import ConfigurationError
from pslib.metrics import ScoreCounts
from pslib.ranking import RankResult, counts_of_ranks, mean_ranks
from pslib.schema import RaggedField, Schema, SparseField
from pslib.trainer.dense import DenseLayout
from pslib.trainer.jobs import Job

__all__ = [
    "LEASE_ROWS",
    "RANK_ROWS",
    "Ranker",
    "RankingModel",
    "items_of",
    "ranking_model",
    "ranking_schema",
    "sampler_of",
]

PULL_KEYS = 65_536
"""Items whose rows are read with one request."""
LEASE_ROWS = 4096
"""Examples of a lease: some seconds of one trainer."""
RANK_ROWS = 1024
"""Examples whose rows are pulled together."""
SCORES_MAX = 1 << 25
"""Scores at once: 128 MiB of float32."""


@runtime_checkable
class RankingModel(Protocol):
    """A model that ranks items: rows are ``bias, vector``, a state's product with them is their score."""

    @property
    def schema(self) -> Schema:
        """With one ragged field: the items of a session."""
        ...

    def sampling(self) -> Sampling:
        """What is drawn for each batch that it is trained on."""
        ...

    def encode(
        self, batch: Batch, rows: NDArray[Any], dense: dict[str, NDArray[Any]], field: str
    ) -> NDArray[Any]:
        """(B, D) states at the end of the items in ``field``."""
        ...


def ranking_model(model: object) -> RankingModel:
    """The model, as one that ranks items.

    Raises
    ------
    ConfigurationError
        When it does not.
    """
    if isinstance(model, RankingModel):
        return model
    raise ConfigurationError(f"{type(model).__name__} predicts clicks and ranks no items: evaluate it")


def ranking_schema(model: RankingModel, history: str, target: str) -> Schema:
    """How examples to rank are read: items so far, and the one that came next, of one vocabulary."""
    own = model.schema.ragged[0]
    vocabulary = own.vocabulary or own.name
    lists = RaggedField(history, vocabulary=vocabulary)
    return Schema(label=None, sparse=[SparseField(target, vocabulary)], ragged=[lists])


def sampler_of(model: object, data: ParquetData, seed: int) -> NegativeSampler | None:
    """What draws items for each batch of a model that ranks them; None for others."""
    return NegativeSampler(data, model.sampling(), seed) if isinstance(model, RankingModel) else None


def items_of(model: RankingModel, paths: list[str]) -> NDArray[np.uint64]:
    """Keys of all items of the training data, ascending."""
    return item_counts(ParquetData(paths, model.schema), model.schema.ragged[0].name)[0]


class Ranker:
    """Ranks with the rows and dense parameters that the servers have now.

    Parameters
    ----------
    model : RankingModel
    client : Client
    table : str
    layout : DenseLayout
    items : (V,) uint64
        Keys of all items, ascending.
    exclude_seen : bool
        Whether the items of the history are left out of the ranking, the target too if it is one of them.
    """

    def __init__(
        self,
        model: RankingModel,
        client: Client,
        table: str,
        layout: DenseLayout,
        items: NDArray[np.uint64],
        exclude_seen: bool,
    ) -> None:
        self._model, self._client, self._table, self._items = model, client, table, items
        self._exclude_seen = exclude_seen
        self._dense = dict(layout.views(client.pull({}, dense=True).wait().dense))
        pieces = [self._rows(items[start : start + PULL_KEYS]) for start in range(0, items.size, PULL_KEYS)]
        rows = np.concatenate(pieces)
        self._biases, self._vectors = rows[:, 0].copy(), np.ascontiguousarray(rows[:, 1:].T)

    def work_at(self, job: Job, reader: LeaseReader, history: str) -> RankResult:
        """Rank the examples of all leases, with all other trainers."""
        for lease in job.leases():
            scores, positives, negatives = self.rank(reader.batches(0, lease.index), history).to_arrays()
            job.end(lease, {"scores": scores, "positives": positives, "negatives": negatives}).wait()
        found = job.outcome()
        by_k = {name: dict(zip(found["at"], found[name], strict=True)) for name in ("recall", "mrr", "ndcg")}
        return RankResult(found["examples"], **by_k)

    def rank(self, batches: Iterator[Batch], history: str) -> ScoreCounts:
        """How often targets stand where."""
        parts = [ScoreCounts.empty()]
        for batch in batches:
            states = self._model.encode(batch, self._rows(batch.keys), self._dense, history)
            at_once = max(1, SCORES_MAX // self._items.size)
            for start in range(0, len(batch), at_once):
                parts.append(self._one(batch, states, slice(start, start + at_once), history))
        return ScoreCounts.merge(parts)

    def _one(self, batch: Batch, states: NDArray[Any], cut: slice, history: str) -> ScoreCounts:
        scores = states[cut] @ self._vectors
        scores += self._biases
        places = self._places(batch.keys)
        targets = places[batch.sparse[cut, 0]]
        if self._exclude_seen:
            offsets = batch.ragged[history].offsets
            firsts, lasts = offsets[:-1][cut], offsets[1:][cut]
            seen = places[batch.ragged[history].values[firsts[0] : lasts[-1]]]
            owners = np.repeat(np.arange(firsts.size), lasts - firsts)
            scores[owners[seen >= 0], seen[seen >= 0]] = -np.inf
        return counts_of_ranks(mean_ranks(scores, targets))

    def _rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        return self._client.pull({self._table: keys}).wait().rows[self._table]

    def _places(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Column of each key among all items; -1 for others."""
        places = np.minimum(np.searchsorted(self._items, keys), self._items.size - 1)
        return np.where(self._items[places] == keys, places, -1)
