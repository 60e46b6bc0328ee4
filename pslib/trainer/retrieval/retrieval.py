"""Retrieval: rank items, write the best items of each example, export vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.client.client import Client
from pslib.data.arrow_data import Data, lasting, open_data, paths_in
from pslib.data.column_types import KeyKinds
from pslib.data.dataset import ParquetData
from pslib.data.item_catalog import catalogue_of
from pslib.data.order import Order
from pslib.data.reader import LeaseReader
from pslib.data.split import TrainedRows
from pslib.errors import ConfigurationError
from pslib.metrics.metrics import ScoreCounts, diverged
from pslib.metrics.ranking import RankResult, counts_of_ranks, mean_ranks
from pslib.metrics.top_k import NearestIndex, best_of
from pslib.schema import Schema
from pslib.trainer.checkpoints.save_load import Position
from pslib.trainer.collective import Job
from pslib.trainer.evaluation.predictions import PartFiles
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.trainer.retrieval.towers import Parameters, RankedItems, Sides, places_in
from pslib.trainer.settings import RankingSettings, TrainerSettings

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
        True if the history's items are excluded from the ranking, the target too if it is one of them.

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


PathTo: TypeAlias = str | os.PathLike[str]

LEASE_ROWS = 4096
"""Examples of a lease: some seconds of one trainer."""
BATCH_ROWS = 1024
"""Number of examples whose rows are pulled together."""


@dataclass(frozen=True, slots=True, eq=False)
class Retrieval:
    """Ranking, recommending and exporting for one call of a `pslib.trainer.trainer.Trainer`.

    Its methods implement the trainer's methods of the same names, and take their arguments.

    Attributes
    ----------
    sides : Sides
        Sides of the model.
    client : Client
    table : str
        Name of the model's table.
    layout : DenseLayout
    settings : TrainerSettings
    key_kinds : KeyKinds
        Key kinds of the training data.
    trained : TrainedRows or None
        Rows that no ranking may be measured on; None: unknown, or none.
    standing : callable
        Returns the position of the training, and its done work, for records.
    look : callable
        Called before a read-only call: sets the training's position to its checkpoint's.
    open_job : callable
        Opens a job of this trainer, see `pslib.trainer.collective.spec_of`.
    """

    sides: Sides
    client: Client
    table: str
    layout: DenseLayout
    settings: TrainerSettings
    key_kinds: KeyKinds
    trained: TrainedRows | None
    standing: Callable[[], tuple[Position, dict[str, int]]]
    look: Callable[[], None]
    open_job: Callable[[str, ParquetData, Order, list[int], dict[str, Any], Any], Job]

    def check_data(
        self,
        data: Data,
        items: Data,
        how: RankingSettings,
    ) -> None:
        """Check the data to rank, before hours of training; errors as for `rank`."""
        schema = _schema_asked(self.sides, how)
        open_data(items, self.sides.named_in, key_kinds=self.key_kinds)
        asked = open_data(data, schema, key_kinds=self.key_kinds)
        if self.trained:
            self.trained.check_unseen(asked)

    def rank(self, data: Data, items: Data, how: RankingSettings, name: str) -> RankResult:
        """See `pslib.Trainer.rank`."""
        schema = _schema_asked(self.sides, how)
        self.look()
        ranker, about = self._ranker(items, how.history, how.exclude_seen)
        job, reader = self._leases(
            "rank", data, schema, about, {"at": list(how.at)} | ({"name": name} if name else {})
        )
        with closing(reader):
            return ranker.work_at(job, reader)

    def recommend(
        self,
        data: Data,
        items: Data,
        out: PathTo,
        k: int,
        history: str | None,
        exclude_seen: bool,
        approximate: bool,
    ) -> None:
        """See `pslib.Trainer.recommend`."""
        if k < 1:
            raise ConfigurationError(f"k: expected at least 1, got {k}")
        data, items = lasting(data), lasting(items)
        files = PartFiles("recommend", out, [*paths_in(data), *paths_in(items)])
        if approximate:
            self._check_vectors()
        schema = self.sides.example_schema(history)
        self.look()
        ranker, about = self._ranker(items, history, exclude_seen)
        job, reader = self._leases("recommend", data, schema, [*about, k])
        files.begin(reader.leases)
        names, best_of = ranker.items.values, ranker.nearest() if approximate else ranker.best
        with closing(reader):
            for lease in job.leases():
                best = [best_of(batch, k) for batch in reader.batches(0, lease.index)]
                files.write_table(lease.index, pa.concat_tables(best_table(names, *one) for one in best))
                job.end(lease).wait()

    def export_vectors(self, data: Data, out: PathTo, side: str, history: str | None) -> None:
        """See `pslib.Trainer.export_vectors`."""
        if side not in ("item", "query"):
            raise ConfigurationError(f"side: expected item or query, got {side!r}")
        sides = self.sides
        self._check_vectors()
        data = lasting(data)
        self.look()
        files, parameters = PartFiles("export_vectors", out, paths_in(data)), self._parameters()
        schema = sides.item_schema if side == "item" else sides.example_schema(history)
        job, reader = self._leases("export", data, schema, [side])
        files.begin(reader.leases)
        names = catalogue_of(reader.data, sides.item) if side == "item" else None
        with closing(reader):
            for lease in job.leases():
                batches = reader.batches(0, lease.index)
                if names is None:
                    pieces = [vector_table(sides.states(one, parameters, history)) for one in batches]
                else:
                    pieces = [_items_table(sides, one, parameters, *names) for one in batches]
                files.write_table(lease.index, pa.concat_tables(pieces))
                job.end(lease).wait()

    def _check_vectors(self) -> None:
        if not self.sides.by_product:
            name = self.sides.model_name
            raise ConfigurationError(f"{name}: scores are no products of vectors: recommend, exactly")

    def _parameters(self) -> ServedParameters:
        return ServedParameters(self.client, self.table, self.layout, self.standing()[0].steps)

    def _ranker(self, items: Data, history: str | None, exclude_seen: bool) -> tuple[Ranker, list[Any]]:
        """Return the ranker, and the values that all trainers must agree on."""
        _check_seen(self.sides, history, exclude_seen)
        parameters = self._parameters()
        ranked = self.sides.items(items, parameters, self.key_kinds)
        agreed = [int(ranked.keys.size), exclude_seen, history]
        return Ranker(self.sides, ranked, parameters, history, exclude_seen), agreed

    def _leases(
        self, what: str, data: Data, schema: Schema, agreed: list[Any], more: Mapping[str, Any] | None = None
    ) -> tuple[Job, LeaseReader]:
        """Open the job over all rows of some data; return it and the reader."""
        position, behind = self.standing()
        batch_rows = min(self.settings.batch_rows, BATCH_ROWS)
        rows = open_data(data, schema, key_kinds=self.key_kinds)
        if self.trained and what == "rank":
            self.trained.check_unseen(rows)
        order = Order(0, [group.rows for group in rows.row_groups], LEASE_ROWS, shuffle=False)
        details = {"examples": rows.rows, **behind, **(more or {})}
        job = self.open_job(
            what, rows, order, [order.leases(0)], details, [batch_rows, position.epochs, *agreed]
        )
        return job, LeaseReader(rows, schema, order, batch_rows)


def _check_seen(sides: Sides, history: str | None, exclude_seen: bool) -> None:
    if exclude_seen and sides.seen(history) is None:
        raise ConfigurationError("exclude_seen: expected the column of items before; give history=COLUMN")


def _schema_asked(sides: Sides, how: RankingSettings) -> Schema:
    """Return the columns of examples to rank; ConfigurationError if nothing says what was seen."""
    _check_seen(sides, how.history, how.exclude_seen)
    return sides.example_schema(how.history, [sides.goal(how.target)])


def vector_table(vectors: NDArray[Any], columns: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """Build a table of vectors as lists of fixed size, after other columns."""
    floats = pa.array(np.ascontiguousarray(sound(vectors, "rows"), np.float32).ravel())
    lists, given = pa.FixedSizeListArray.from_arrays(floats, vectors.shape[1]), columns or {}
    return pa.table({**given, _beside("vector", given): lists})


def _beside(name: str, given: Collection[str]) -> str:
    """Return a name for a pslib column that differs from the user's columns."""
    return f"{name}_" if name in given else name


def _items_table(
    sides: Sides, batch: Batch, parameters: ServedParameters, known: NDArray[np.uint64], names: pa.Array
) -> pa.Table:
    """Build a table with a row per item: its name in the data, its key, its vector."""
    keys = batch.keys[batch.sparse[:, sides.item_schema.sparse.index(sides.item)]]
    values = names.take(pa.array(places_in(known, keys)))
    columns = {sides.item.name: values, _beside("key", [sides.item.name]): pa.array(keys)}
    return vector_table(sides.item_vectors(batch, parameters), columns)


def best_table(names: pa.Array, places: NDArray[np.int64], scores: NDArray[Any]) -> pa.Table:
    """Build a table with a row per example: its best items and their scores, without unused places."""
    taken = places >= 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(taken.sum(axis=1))]).astype(np.int32))
    items = pa.ListArray.from_arrays(offsets, names.take(pa.array(places[taken])))
    return pa.table(
        {
            "items": items,
            "scores": pa.ListArray.from_arrays(offsets, pa.array(scores[taken].astype(np.float32))),
        }
    )
