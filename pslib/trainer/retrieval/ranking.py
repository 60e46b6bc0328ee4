"""Ranking of all items for each example: the rank of its target, or its best items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.client.client import Client
from pslib.data.reader import LeaseReader
from pslib.errors import ConfigurationError
from pslib.metrics.metrics import ScoreCounts, diverged
from pslib.metrics.ranking import RankResult, counts_of_ranks, mean_ranks
from pslib.metrics.top_k import NearestIndex, best_of
from pslib.trainer.collective import Job
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.trainer.retrieval.towers import Parameters, RankedItems, Sides

__all__ = ["Ranker", "ServedParameters", "sound"]

SCORES_MAX = 1 << 25
"""Scores computed at once: 128 MiB of float32."""


class ServedParameters:
    """Parameters of a model, read from the servers.

    Parameters
    ----------
    client : Client
    table : str
    layout : DenseLayout
        Layout of dense parameters, which are read once, in the constructor.
    step : int
        Step at which rows are read: weight decay outstanding up to it is applied.
    """

    def __init__(self, client: Client, table: str, layout: DenseLayout, step: int) -> None:
        self._client, self._table, self._step = client, table, step
        self.dense: dict[str, NDArray[Any]] = dict(layout.views(client.pull({}, dense=True).wait().dense))

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return (n, D) rows of keys; absent keys have their initial values."""
        return self._client.pull({self._table: keys}, step=self._step).wait().rows[self._table]


def sound(vectors: NDArray[Any], what: str) -> NDArray[Any]:
    """Check that a model's (n, M) vectors are finite and return them; ``what`` names their source.

    Raises
    ------
    ConfigurationError
        If one is not finite: its scores would be meaningless, and its rank would count as a miss.
    """
    if bad := len(vectors) - int(np.isfinite(vectors).all(axis=1).sum()):
        raise ConfigurationError(diverged(what, bad, len(vectors), "no finite numbers"))
    return vectors


class Ranker:
    """Ranker with the servers' current rows and dense parameters.

    Parameters
    ----------
    sides : Sides
    items : RankedItems
    parameters : Parameters
    history : str or None
        Column with the earlier items.
    exclude_seen : bool
        Whether the history's items are excluded from the ranking, the target too if it is one of them.

    Raises
    ------
    ConfigurationError
        If the vector of an item, or later of an example, is not finite.
    """

    def __init__(
        self,
        sides: Sides,
        items: RankedItems,
        parameters: Parameters,
        history: str | None,
        exclude_seen: bool,
    ) -> None:
        self._sides, self.items, self._parameters, self._history = sides, items, parameters, history
        sound(items.vectors, "items")
        self._seen = sides.seen(history) if exclude_seen else None

    def work_at(self, job: Job, reader: LeaseReader) -> RankResult:
        """Rank the examples of all leases, with all other trainers."""
        for lease in job.leases():
            scores, positives, negatives = self.rank(reader.batches(0, lease.index)).to_arrays()
            job.end(lease, {"scores": scores, "positives": positives, "negatives": negatives}).wait()
        found = job.outcome()
        by_k = {name: dict(zip(found["at"], found[name], strict=True)) for name in ("recall", "mrr", "ndcg")}
        return RankResult(found["examples"], **by_k)

    def rank(self, batches: Iterator[Batch]) -> ScoreCounts:
        """Count the ranks of targets."""
        parts, every = [ScoreCounts.empty()], slice(0, self.items.keys.size)
        for batch in batches:
            places = self.items.places(batch.keys)
            states = self._states(batch)
            at_once = max(1, SCORES_MAX // self.items.keys.size)
            for start in range(0, len(batch), at_once):
                cut = slice(start, start + at_once)
                scores = self._scores(batch, states, places, cut, every)
                parts.append(counts_of_ranks(mean_ranks(scores, places[batch.sparse[cut, -1]])))
        return ScoreCounts.merge(parts)

    def best(self, batch: Batch, k: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return places and scores of the best k items of each example, see `pslib.metrics.top_k.best_of`."""
        places, every = self.items.places(batch.keys), slice(0, len(batch))
        states = self._states(batch)

        def scores(items: slice) -> NDArray[Any]:
            return self._scores(batch, states, places, every, items)

        return best_of(scores, len(batch), self.items.keys.size, k)

    def nearest(self) -> Callable[[Batch, int], tuple[NDArray[np.int64], NDArray[Any]]]:
        """Return an approximate `best` that searches a graph of the items' vectors.

        Raises
        ------
        ConfigurationError
            If faiss is not installed.
        """
        index = NearestIndex(self.items.vectors)

        def best(batch: Batch, k: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
            states = self._states(batch)
            lists = batch.ragged[self._seen] if self._seen is not None else None
            longest = 0 if lists is None else int(lists.lengths.max(initial=0))
            found, scores = index.search(states, k + longest)
            if lists is not None:
                places = self.items.places(batch.keys)[lists.values]
                rows = np.arange(len(batch)) * self.items.keys.size  # a number for each example and item
                seen = (np.repeat(rows, lists.lengths) + places)[places >= 0]
                scores[np.isin(rows[:, None] + found, seen)] = -np.inf
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            scores = np.take_along_axis(scores, order, axis=1)
            return np.where(np.isneginf(scores), -1, np.take_along_axis(found, order, axis=1)), scores

        return best

    def _states(self, batch: Batch) -> NDArray[Any]:
        return sound(self._sides.states(batch, self._parameters, self._history), "examples")

    def _scores(
        self, batch: Batch, states: NDArray[Any], places: NDArray[np.int64], cut: slice, items: slice
    ) -> NDArray[Any]:
        """Return scores of some examples and items; -inf for items in the example's history."""
        scores = self._sides.scores(states[cut], self.items.vectors[items], self._parameters)
        if self._seen is not None:
            lists = batch.ragged[self._seen]
            firsts, lasts = lists.offsets[:-1][cut], lists.offsets[1:][cut]
            seen = places[lists.values[firsts[0] : lasts[-1]]] - items.start
            owners = np.repeat(np.arange(firsts.size), lasts - firsts)
            here = (seen >= 0) & (seen < scores.shape[1])
            scores[owners[here], seen[here]] = -np.inf
        return scores
