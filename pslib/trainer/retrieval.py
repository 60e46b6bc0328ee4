"""What a trainer does with a model that ranks items: rank them, find the best, hand out their vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.arguments import checked
from pslib.batch import Batch
from pslib.client.client import Client
from pslib.cluster import Cluster
from pslib.data.catalogue import catalogue_of
from pslib.data.column_types import KeyKinds
from pslib.data.dataset import ParquetData
from pslib.data.order import Order
from pslib.data.reader import LeaseReader
from pslib.errors import ConfigurationError
from pslib.metrics.ranking import RankResult
from pslib.schema import Schema
from pslib.table.tables import TableSpec
from pslib.trainer.calls import collective
from pslib.trainer.dense import DenseLayout
from pslib.trainer.jobs import Job
from pslib.trainer.model import TrainableModel
from pslib.trainer.predictions import PartFiles
from pslib.trainer.ranked import Sides, places_in, sides_of
from pslib.trainer.ranking import Ranker, ServedParameters, sound
from pslib.trainer.settings import TrainerSettings
from pslib.trainer.stopping import EarlyStopping, check_epochs, check_stopping, followed, place_of_metric

__all__ = ["PathTo", "Paths", "Retrieval", "strings"]

PathTo: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathTo | Sequence[PathTo] | Iterator[PathTo]

LEASE_ROWS = 4096
"""Examples of a lease: some seconds of one trainer."""
BATCH_ROWS = 1024
"""Examples whose rows are pulled together."""


class Retrieval:
    """The part of a `Trainer` that ranks items; every method is called by all trainers alike."""

    model: TrainableModel
    cluster: Cluster
    settings: TrainerSettings
    _client: Client
    _table: TableSpec
    _layout: DenseLayout
    _epochs: int
    _files: list[str]
    _key_kinds: KeyKinds
    _by_files: bool
    _steps: int
    _fit: Callable[[ParquetData, int, float, int], None]
    save: Callable[..., str]
    load: Callable[..., None]
    _look: Callable[[], None]
    _open: Callable[[str, ParquetData, Order, list[int], dict[str, Any], Any], Job]

    @checked()
    @collective
    def fit_and_rank(
        self,
        data: Paths,
        valid: Paths,
        epochs: int = 1,
        *,
        stopping: EarlyStopping | None = None,
        best: PathTo | None = None,
        items: Paths | None = None,
        at: Sequence[int] = (20,),
        history: str | None = None,
        target: str | None = None,
        exclude_seen: bool = False,
    ) -> list[RankResult]:
        """Train, and rank after every epoch; return what the rankings have found.

        Parameters
        ----------
        data : path, or several
            Files, folders or globs to train on.
        valid : path, or several
            Examples to rank items for, as `rank` reads them.
        epochs : int
            How often every example is seen, at most.
        stopping : EarlyStopping or None
            What the rankings are for: lower rates, an early end, the best epoch's parameters. Its metric is
            that of a ranking, ``recall@20``.
        best : path or None
            Folder where the best epoch is kept; needed with a stopping that restores it.
        items : path, or several, or None
            Whose items are ranked; None: those of ``data``.
        at, history, target, exclude_seen
            As for `rank`.

        Raises
        ------
        ConfigurationError
            When the model does not rank items, epochs are below 1, or stopping lacks something.
        DataError
            When a file does not fit.
        """
        sides = sides_of(self.model)
        epochs = check_epochs(epochs)
        check_stopping(stopping, valid, best, self._table, self.settings.dense_optimizer, ranked=True)
        data, valid, items = _lasting(data), _lasting(valid), items and _lasting(items)
        train = ParquetData(strings(data), self.model.schema, key_kinds=self._key_kinds)
        schema = _schema_asked(sides, at, history, target, exclude_seen)
        for paths, columns in ((items or data, sides.named_in), (valid, schema)):  # before hours of training
            ParquetData(strings(paths), columns, key_kinds=self._key_kinds)
        watched = place_of_metric(stopping.metric) if stopping else None
        places = list(at) if watched is None or watched in at else [*at, watched]

        def one_epoch(rate: float, to_come: int) -> RankResult:
            self._fit(train, 1, rate, to_come)
            return self.rank(
                valid,
                items or data,
                at=places,
                history=history,
                target=target,
                exclude_seen=exclude_seen,
                name="valid",
            )

        if stopping is None:
            return [one_epoch(1.0, epochs - 1 - done) for done in range(epochs)]
        return followed(stopping, epochs, one_epoch, self.save, self.load, best, self._epochs)

    @checked()
    @collective
    def rank(
        self,
        data: Paths,
        items: Paths,
        *,
        at: Sequence[int] = (20,),
        history: str | None = None,
        target: str | None = None,
        exclude_seen: bool = False,
        name: str = "",
    ) -> RankResult:
        """Rank all items for each example; creates no rows.

        Parameters
        ----------
        data : path, or several
            Parquet. For a model of sessions: the items so far, a list column ``history``, and the one that
            came next. For a model of queries and items: the fields of a query, and its item.
        items : path, or several
            Whose items are ranked: the training sessions; or rows with the fields of items, each item at
            least once. A null among them is no item, and a target that is null is a miss.
        at : sequence of int
            The k of Recall@k, MRR@k and NDCG@k; see `pslib.metrics.ranking`.
        history : str or None
            Column of the items before; None: ``prefix`` for sessions, else none.
        target : str or None
            Column of the item that is looked for; None: ``target`` for sessions, else that of the items.
        exclude_seen : bool
            Leave out what is in the history; needs one.
        name : str
            What lines and records of the run call it, ``"test"`` for example.

        Raises
        ------
        ConfigurationError
            When the model does not rank items, a k is below 1, or nothing says what was seen.
        DataError
            When a file does not fit.
        """
        sides = sides_of(self.model)
        schema = _schema_asked(sides, at, history, target, exclude_seen)
        self._look()
        ranker, about = self._ranker(sides, items, history, exclude_seen)
        job, reader = self._leases(
            "rank", data, schema, about, {"at": list(at)} | ({"name": name} if name else {})
        )
        with closing(reader):
            return ranker.work_at(job, reader)

    @checked()
    @collective
    def recommend(
        self,
        data: Paths,
        items: Paths,
        out: PathTo,
        *,
        k: int = 20,
        history: str | None = None,
        exclude_seen: bool = False,
        approximate: bool = False,
    ) -> None:
        """Write the best k items of each example, exactly; a chunk of scores is held at once, never all.

        Parameters
        ----------
        data, items, history, exclude_seen
            As for `rank`; no target is read.
        out : path or URI
            Folder for ``part-NNNNNN.parquet``, whose rows are those of ``data`` in their order, with lists
            ``items``, the best first, and ``scores``; shorter than k where fewer items are left.
        k : int
        approximate : bool
            Look for them in a graph of the items' vectors instead, see `pslib.metrics.nearest`; needs faiss.

        Raises
        ------
        ConfigurationError
            When the model does not rank items, nothing says what was seen, there are no vectors or no faiss
            for an approximate search, or the folder can't be written, or holds this data or other people's
            part files.
        DataError
            When a file does not fit.
        """
        if k < 1:
            raise ConfigurationError(f"k: expected at least 1, got {k}")
        data, items = strings(data), strings(items)
        sides, files = sides_of(self.model), PartFiles("recommend", out, [*data, *items])
        if approximate:
            self._check_vectors(sides)
        schema = sides.example_schema(history)
        self._look()
        ranker, about = self._ranker(sides, items, history, exclude_seen)
        job, reader = self._leases("recommend", data, schema, [*about, k])
        files.begin(reader.leases)
        names, best_of = ranker.items.values, ranker.nearest() if approximate else ranker.best
        with closing(reader):
            for lease in job.leases():
                best = [best_of(batch, k) for batch in reader.batches(0, lease.index)]
                files.write_table(lease.index, pa.concat_tables(_best_table(names, *one) for one in best))
                job.end(lease).wait()

    @checked()
    @collective
    def export_vectors(
        self, data: Paths, out: PathTo, *, side: str = "item", history: str | None = None
    ) -> None:
        """Write vectors: the product of a query's and an item's is their score.

        Parameters
        ----------
        data : path, or several
            Rows with the fields of items, or of queries. A model of sessions takes the column ``item``, or
            ``history``.
        out : path or URI
            Folder for ``part-NNNNNN.parquet``, whose rows are those of ``data`` in their order, with
            ``vector``, a list of fixed size of float32; of items also the column that names them and ``key``
            (uint64), their row in the table. Where that column is called so, these are ``vector_`` or
            ``key_``.
        side : "item" or "query"
        history : str or None
            As for `rank`.

        Raises
        ------
        ConfigurationError
            When the model's scores are no products of vectors, or the folder can't be written, or holds this
            data or other people's part files.
        DataError
            When a file does not fit.
        """
        if side not in ("item", "query"):
            raise ConfigurationError(f"side: expected item or query, got {side!r}")
        sides = sides_of(self.model)
        self._check_vectors(sides)
        data = strings(data)
        self._look()
        files, parameters = PartFiles("export_vectors", out, data), self._parameters()
        schema = sides.item_schema if side == "item" else sides.example_schema(history)
        job, reader = self._leases("export", data, schema, [side])
        files.begin(reader.leases)
        names = catalogue_of(reader.data, sides.item) if side == "item" else None
        with closing(reader):
            for lease in job.leases():
                batches = reader.batches(0, lease.index)
                if names is None:
                    pieces = [_table(sides.states(one, parameters, history)) for one in batches]
                else:
                    pieces = [_items_table(sides, one, parameters, *names) for one in batches]
                files.write_table(lease.index, pa.concat_tables(pieces))
                job.end(lease).wait()

    @property
    def _behind(self) -> dict[str, int]:
        """What the training has behind it, for records."""
        return {"files": len(self._files)} if self._by_files else {"epoch": self._epochs}

    def _check_vectors(self, sides: Sides) -> None:
        if not sides.by_product:
            raise ConfigurationError(
                f"{type(self.model).__name__}: scores are no products of vectors: recommend, exactly"
            )

    def _parameters(self) -> ServedParameters:
        return ServedParameters(self._client, self._table.name, self._layout, self._steps)

    def _ranker(
        self, sides: Sides, items: Paths, history: str | None, exclude_seen: bool
    ) -> tuple[Ranker, list[Any]]:
        """The ranker, and what all trainers must agree on."""
        _check_seen(sides, history, exclude_seen)
        parameters = self._parameters()
        ranked = sides.items(strings(items), parameters, self._key_kinds)
        agreed = [int(ranked.keys.size), exclude_seen, history]
        return Ranker(sides, ranked, parameters, history, exclude_seen), agreed

    def _leases(
        self, what: str, data: Paths, schema: Schema, agreed: list[Any], more: Mapping[str, Any] | None = None
    ) -> tuple[Job, LeaseReader]:
        """The job that goes through all rows of some data, and what reads them."""
        batch_rows = min(self.settings.batch_rows, BATCH_ROWS)
        rows = ParquetData(strings(data), schema, key_kinds=self._key_kinds)
        order = Order(0, [group.rows for group in rows.row_groups], LEASE_ROWS, shuffle=False)
        details = {"examples": rows.rows, **self._behind, **(more or {})}
        job = self._open(what, rows, order, [order.leases(0)], details, [batch_rows, self._epochs, *agreed])
        return job, LeaseReader(rows, schema, order, batch_rows)


def _check_seen(sides: Sides, history: str | None, exclude_seen: bool) -> None:
    if exclude_seen and sides.seen(history) is None:
        raise ConfigurationError("exclude_seen: expected the column of items before; give history=COLUMN")


def _schema_asked(
    sides: Sides, at: Sequence[int], history: str | None, target: str | None, exclude_seen: bool
) -> Schema:
    """Columns of examples that are ranked; ConfigurationError where nothing can be."""
    if min(at, default=0) < 1:
        raise ConfigurationError(f"at: expected numbers of places from 1 on, got {list(at)}")
    _check_seen(sides, history, exclude_seen)
    return sides.example_schema(history, [sides.goal(target)])


def _table(vectors: NDArray[Any], columns: Mapping[str, pa.Array] | None = None) -> pa.Table:
    """Vectors as lists of fixed size, after other columns."""
    floats = pa.array(np.ascontiguousarray(sound(vectors, "rows"), np.float32).ravel())
    lists, given = pa.FixedSizeListArray.from_arrays(floats, vectors.shape[1]), columns or {}
    return pa.table({**given, _beside("vector", given): lists})


def _beside(name: str, given: Collection[str]) -> str:
    """A name for a column of ours: users may have called theirs so."""
    return f"{name}_" if name in given else name


def _items_table(
    sides: Sides, batch: Batch, parameters: ServedParameters, known: NDArray[np.uint64], names: pa.Array
) -> pa.Table:
    """A row an item: what the data calls it, its key, its vector."""
    keys = batch.keys[batch.sparse[:, sides.item_schema.sparse.index(sides.item)]]
    values = names.take(pa.array(places_in(known, keys)))
    columns = {sides.item.name: values, _beside("key", [sides.item.name]): pa.array(keys)}
    return _table(sides.item_vectors(batch, parameters), columns)


def _best_table(names: pa.Array, places: NDArray[np.int64], scores: NDArray[Any]) -> pa.Table:
    """A row an example: its best items and their scores, without places that are free."""
    taken = places >= 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(taken.sum(axis=1))]).astype(np.int32))
    items = pa.ListArray.from_arrays(offsets, names.take(pa.array(places[taken])))
    return pa.table(
        {
            "items": items,
            "scores": pa.ListArray.from_arrays(offsets, pa.array(scores[taken].astype(np.float32))),
        }
    )


def strings(paths: Paths) -> list[str]:
    """Paths as texts."""
    return [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


def _lasting(paths: Paths) -> PathTo | Sequence[PathTo]:
    """Paths that may be gone through for every epoch, as what `Path.glob` gives may not."""
    return list(paths) if isinstance(paths, Iterator) else paths
