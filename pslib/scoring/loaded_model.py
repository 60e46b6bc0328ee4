"""A trained model of a checkpoint: predictions, metrics, vectors and recommendations in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from glob import glob
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.checkpoint import LoadOptions, check_model, newest, read_manifest
from pslib.checkpoint.compatibility import check_fits
from pslib.checkpoint.manifest import Manifest
from pslib.data.arrow_data import KnownTypes, open_data
from pslib.data.column_types import kinds_of
from pslib.data.dataset import ParquetData
from pslib.data.item_catalog import catalogue_of
from pslib.data.split import TrainedRows
from pslib.errors import ConfigurationError, DataError
from pslib.metrics.metrics import EvalResult, ScoreCounts
from pslib.metrics.ranking import RankResult, result_of_ranks
from pslib.schema import RaggedField, Schema, SparseField
from pslib.scoring.followed_parameters import FollowedParameters
from pslib.scoring.parameters import LoadedParameters
from pslib.storage import is_uri, shown
from pslib.suggestions import nearest, unknown_value
from pslib.table.optimizers import SGD
from pslib.table.tables import DenseSpec, RowLayout, TableSpec
from pslib.text import counted, html_table
from pslib.trainer.checkpoints.save_load import description_of
from pslib.trainer.evaluation.scoring import check_label, features_of, task_of
from pslib.trainer.model import Stepper, TrainableModel, dense_shapes_of
from pslib.trainer.pipeline.compute import ModelThreads
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.trainer.retrieval.retrieval import Ranker, best_table, sound, vector_table
from pslib.trainer.retrieval.towers import (
    MatchingModel,
    RankedItems,
    RankingModel,
    Sides,
    places_in,
    sides_of,
    whole_batches,
)
from pslib.trainer.settings import RankingSettings
from pslib.validation import checked_calls

Parameters = LoadedParameters | FollowedParameters
WEIGHTS = LoadOptions(state=False)
"""Which optimizer made the weights does not matter."""
BATCH_ROWS = 4096
"""Examples that are scored together."""
CALLS = {
    "predict_proba": "predict",
    "score": "evaluate",
    "eval": "evaluate",
    "test": "evaluate",
    "transform": "vectors",
    "embeddings": "vectors",
    "embedding": "vectors",
    "most_similar": "nearest",
    "similar": "nearest",
    "recommendations": "recommend",
}
"""Calls by their names in other libraries."""
GOES_ON = "pslib.Trainer(model.model, cluster) goes on with it: trainer.load(model.path), trainer.fit(data)"
VECTORS = "v"
"""Part of a row that is a key's vector, in the models of `rec_models`."""


@checked_calls("predict", "evaluate", "rank", "recommend", "vectors", "nearest", "vectors_by_name")
class LoadedModel:
    """A model with the parameters of a checkpoint, in this process's memory.

    It has no cluster, trains nothing, and may be asked by several threads at once. Data is a path, several
    paths, or a table in memory, see `pslib.data.arrow_data.open_data`. Columns that the model does not read
    are ignored, in any order; an unseen key has its initial row, as in an evaluation.

    Parameters
    ----------
    path : path or URI
        A checkpoint, or a folder of numbered ones, of which the newest is taken.
    model : TrainableModel
        The model that the checkpoint was trained with.
    items : data or None
        Data whose items are ranked, for models that rank items; of any model the data of which `nearest` and
        `vectors_by_name` take the values of a field.
    parameters : callable
        Opens its parameters, from path, manifest, table and layout: those of the checkpoint, or some that
        follow a cluster.

    Raises
    ------
    CheckpointError
        If there is no checkpoint, it is damaged, or of another model.

    Attributes
    ----------
    model : TrainableModel
    schema : Schema
        Columns that it reads.
    path : str
    steps, epochs : int
        How long it was trained.
    parameters : LoadedParameters or FollowedParameters
    table : TableSpec
        Its table, as saved.
    key_kinds : KeyKinds
        Kinds of the keys that it was trained on.
    """

    def __init__(
        self,
        path: str,
        model: TrainableModel,
        items: Any = None,
        parameters: Callable[[str, Manifest, TableSpec, DenseLayout], Parameters] = LoadedParameters,
    ) -> None:
        place = newest(path)
        manifest = read_manifest(place)
        own, layout = model.table(), DenseLayout(dense_shapes_of(model))
        check_model(manifest, place, description_of(model, own, layout))
        check_fits(manifest, place, {own.name: own}, DenseSpec(layout.length, SGD()), WEIGHTS)
        table = manifest.specs[own.name]
        self.model, self.schema, self.path = model, model.schema, place
        self.steps, self.epochs = (int(manifest.about.get(key, 0)) for key in ("steps", "epochs"))
        self.table, self.key_kinds = table, kinds_of(manifest.about, place)
        self._trained = TrainedRows.in_manifest(manifest.about)
        self.parameters = parameters(place, manifest, table, layout)
        self._items_data = items

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name the call that has a name of another library here."""
            if hasattr(type(self), name):  # a property has failed: its own error says how
                return object.__getattribute__(self, name)
            if name in ("fit", "train"):
                raise AttributeError(f"a loaded model has no {name}: {GOES_ON}")
            meant = CALLS.get(name) or nearest(name, [one for one in dir(self) if not one.startswith("_")])
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise AttributeError(f"a loaded model has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        trained = f"{counted(self.steps, 'step')}, {counted(self.rows, 'row')}"
        return f"<{type(self.model).__name__} of {shown(self.path)}: {trained}>"

    def _repr_html_(self) -> str:
        of_training = {"steps": f"{self.steps:,}", "epochs": self.epochs, "rows": f"{self.rows:,}"}
        return html_table(type(self.model).__name__, {"checkpoint": shown(self.path)} | of_training)

    @property
    def rows(self) -> int:
        """Rows of its table."""
        return self.parameters.count

    @property
    def ranks_items(self) -> bool:
        """True if the model ranks items, instead of predicting clicks."""
        return isinstance(self.model, RankingModel | MatchingModel)

    @cached_property
    def _features(self) -> Schema:
        return features_of(self.schema)

    @cached_property
    def _known(self) -> KnownTypes:
        return KnownTypes(self._features, self.key_kinds)

    # --- clicks -------------------------------------------------------------------------------------------

    def predict(self, data: Any) -> NDArray[np.float32]:
        """Return the probability of each example: (n,), or (n, T) where the schema has T labels.

        Parameters
        ----------
        data : path, several paths, or a table
            Needs no label.

        Raises
        ------
        ConfigurationError
            If the model ranks items.
        DataError
            If the data does not fit the schema.
        """
        check_label(self.model, "predict", "recommend(history)")
        opened = open_data(
            data, self._features, may_be_empty=True, key_kinds=dict(self.key_kinds), known=self._known
        )
        with self._stepper(opened.rows) as model:
            parts = [self._predicted(model, batch) for batch in whole_batches(opened, BATCH_ROWS)]
        shape = (0,) if len(self.schema.labels) < 2 else (0, len(self.schema.labels))
        return np.concatenate([np.empty(shape, np.float32), *parts])

    def evaluate(self, data: Any, *, label: str | None = None) -> EvalResult:
        """Return exact AUC, log loss and calibration.

        Parameters
        ----------
        data : path, several paths, or a table
        label : str or None
            Label of the task, where the schema has several; None: the first.

        Raises
        ------
        ConfigurationError
            If the schema has no such label, or as for `Trainer.evaluate`.
        DataError
            If the data does not fit the schema.
        """
        task = task_of(self.schema, label)
        check_label(self.model, "evaluate", "rank(data)")
        opened = self._opened_unseen(data, self.schema)
        counts = []
        with self._stepper(opened.rows) as model:
            for batch in whole_batches(opened, BATCH_ROWS):
                predicted, labels = self._predicted(model, batch), batch.every_label
                predicted = predicted[:, task] if predicted.ndim == 2 else predicted
                labels = labels[:, task] if labels.ndim == 2 else labels
                counts.append(ScoreCounts.of(np.ascontiguousarray(predicted), labels))
        return ScoreCounts.merge(counts).result()

    def _predicted(self, model: Stepper, batch: Batch) -> NDArray[np.float32]:
        rows = self.parameters.rows(batch.keys)
        return np.asarray(model.predict(batch, rows, self.parameters.dense), np.float32)

    @contextmanager
    def _stepper(self, rows: int) -> Iterator[Stepper]:
        """Return the model, with threads of its own where there is work for them."""
        if rows <= BATCH_ROWS:
            yield self.model
            return
        with ModelThreads(self.model, None, products=None) as threads:
            yield threads  # type: ignore[misc]  # it has the `predict` of a Stepper

    # --- items --------------------------------------------------------------------------------------------

    def rank(
        self,
        data: Any,
        *,
        at: Sequence[int] = (20,),
        history: str | None = None,
        target: str | None = None,
        exclude_seen: bool = False,
    ) -> RankResult:
        """Rank all items for each example; see `pslib.Trainer.rank`, whose arguments these are.

        Raises
        ------
        ConfigurationError
            If the model predicts clicks, was loaded without items, or a k is below 1.
        DataError
            If the data does not fit.
        """
        RankingSettings(at=tuple(at), history=history, target=target, exclude_seen=exclude_seen)
        schema = self._sides.example_schema(history, [self._sides.goal(target)])
        ranker = self._ranker(history, exclude_seen)
        opened = self._opened_unseen(data, schema)
        return result_of_ranks(ranker.rank(whole_batches(opened, BATCH_ROWS)), at)

    def recommend(
        self, data: Any, k: int = 20, *, history: str | None = None, exclude_seen: bool = False
    ) -> pa.Table:
        """Return the best ``k`` items of each example: lists ``items`` and ``scores``, the best first.

        Parameters
        ----------
        data : path, several paths, a table, or a list of items
            The fields of queries, or histories in the column ``history``. For a model of sessions also one
            session: a list of items.
        k : int
        history : str or None
            Column of the items before; None: ``prefix`` for sessions, else none.
        exclude_seen : bool
            Leave out what is in the history; needs one.

        Raises
        ------
        ConfigurationError
            If the model predicts clicks, or was loaded without items.
        DataError
            If the data does not fit.
        """
        if k < 1:
            raise ConfigurationError(f"k: expected at least 1, got {k}")
        schema = self._sides.example_schema(history)
        if _are_ids(data) and not (schema.sparse or schema.dense) and len(schema.ragged) == 1:
            data = pa.table({schema.ragged[0].name: [list(data)]})
        opened, ranker = self._opened(data, schema), self._ranker(history, exclude_seen)
        names = ranker.items.values
        best = [ranker.best(batch, k) for batch in whole_batches(opened, BATCH_ROWS)]
        return pa.concat_tables(best_table(names, *one) for one in best)

    def vectors(self, field: str, data: Any) -> NDArray[np.float32]:
        """Return the (n, D) vectors of values of a field, or of items or queries.

        Parameters
        ----------
        field : str
            A sparse or ragged field; of a model that ranks items ``"item"`` or ``"query"``.
        data : list of values, or data
            Values of the field, or data with the columns that it is made of. Of a ragged field a vector for
            each element, one list after the other.

        Raises
        ------
        ConfigurationError
            If the model has no such field, or no vectors.
        DataError
            If the data does not fit.
        """
        if self._is_side(field):
            return self._vectors_of_side(field, data)
        column = self._field(field)
        opened = self._opened(_as_table(data, column), _schema_of(column), may_be_empty=True)
        keys = [_keys_in(batch, column) for batch in whole_batches(opened, BATCH_ROWS)]
        rows = self.parameters.rows(np.concatenate([np.empty(0, np.uint64), *keys]))
        return np.ascontiguousarray(rows[:, self._vector_columns()])

    def nearest(self, field: str, value: Any, k: int = 10, *, among: Any = None) -> pa.Table:
        """Return the ``k`` values whose vectors have the largest cosine with that of ``value``.

        Parameters
        ----------
        field : str
            As for `vectors`: ``"item"``, or a field.
        value : int or str
            Of a field of integers also their text.
        k : int
        among : list of values, or data, or None
            Values that are compared, or data with the columns of the field; None: the items, or the data,
            that the model was loaded with.

        Returns
        -------
        pyarrow.Table
            ``value`` and ``cosine``, the nearest first, without ``value`` itself.

        Raises
        ------
        ConfigurationError
            If the model has not been trained on ``value``, so that its vector would be an initial one.
        """
        if k < 1:
            raise ConfigurationError(f"k: expected at least 1, got {k}")
        value = self._as_kept(self._named_by(field), value)
        values, vectors = self._distinct(field, among)
        self._check_trained(field, value, values)
        mine = self.vectors(field, [value])[0]
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(mine)
        cosines = np.zeros(len(vectors), np.float32)
        np.divide(vectors @ mine, lengths, out=cosines, where=lengths > 0)
        others = np.flatnonzero([one not in (value, None) for one in values.to_pylist()])
        best = others[np.argsort(-cosines[others], kind="stable")[:k]]
        return pa.table({"value": values.take(pa.array(best)), "cosine": cosines[best]})

    def _check_trained(self, field: str, value: Any, values: pa.Array) -> None:
        """Refuse a value without a row; an item that has further columns has a vector without one."""
        column = self._named_by(field)
        if self._is_side(field) and len(self._sides.item_schema.columns) > 1:
            return
        opened = self._opened(_as_table([value], column), _schema_of(column))
        keys = np.concatenate([_keys_in(batch, column) for batch in whole_batches(opened, BATCH_ROWS)])
        if self.parameters.missing(keys):
            near = nearest(str(value), [str(one) for one in values.to_pylist()])
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigurationError(f"value: {field} {value!r} was not trained{hint}")

    def vectors_by_name(self, field: str, among: Any = None) -> pa.Table:
        """Return the distinct values of a field and their vectors, as a table to write or to index.

        Parameters
        ----------
        field, among
            As for `nearest`. ``"query"``: the rows of ``among`` in their order, which have no name.

        Returns
        -------
        pyarrow.Table
            The field's column, and ``vector``, a list of fixed size of float32.

        Raises
        ------
        ConfigurationError
            If the model has no such field, or no vectors.
        DataError
            If the data does not fit.
        """
        if field == "query" and self._is_side(field):
            return vector_table(self.vectors(field, self._items_data if among is None else among))
        values, vectors = self._distinct(field, among)
        return vector_table(vectors, {_columns_of(self._named_by(field))[0]: values})

    def _named_by(self, field: str) -> SparseField | RaggedField:
        """Return the field that names what has a vector."""
        return self._sides.item if field == "item" and self._is_side(field) else self._field(field)

    def _distinct(self, field: str, among: Any) -> tuple[pa.Array, NDArray[np.float32]]:
        """Return the distinct values of a field among some data, or the items that are loaded."""
        column, is_item = self._named_by(field), field == "item" and self._is_side(field)
        if among is None and is_item:
            return self.items.values, self._item_vectors()
        among = self._items_data if among is None else among
        if among is None:
            raise ConfigurationError(
                f"among: expected the values that are compared: a list, or data with the column {field!r}"
            )
        opened = self._opened(_as_table(among, column), _schema_of(column))
        keys, values = catalogue_of(opened, column)
        if is_item:
            return values, self.vectors(field, values.to_pylist())
        return values, np.ascontiguousarray(self.parameters.rows(keys)[:, self._vector_columns()])

    def _as_kept(self, field: SparseField | RaggedField, value: Any) -> Any:
        """Return a value as the field has it: an integer of its text, where the field has integers."""
        kind = self.key_kinds.get(field.vocabulary or field.name, ("",))[0]
        if kind != "integer" or not isinstance(value, str):
            return value
        try:
            return int(value)
        except ValueError:
            raise ConfigurationError(f"value: {field.name!r} has integers, got {value!r}") from None

    @cached_property
    def items(self) -> RankedItems:
        """Items that are ranked, with their vectors."""
        if self._items_data is None:
            raise ConfigurationError(
                "items: expected the items that are ranked: pslib.load(path, items=DATA), the training "
                "sessions or rows of items; a checkpoint has their keys alone"
            )
        return self._sides.items(self._items_data, self.parameters, dict(self.key_kinds))

    @cached_property
    def _sides(self) -> Sides:
        return sides_of(self.model)

    def _ranker(self, history: str | None, exclude_seen: bool) -> Ranker:
        if exclude_seen and self._sides.seen(history) is None:
            raise ConfigurationError("exclude_seen: expected the column of items before; give history=COLUMN")
        return Ranker(self._sides, self.items, self.parameters, history, exclude_seen)

    def _item_vectors(self) -> NDArray[np.float32]:
        return np.asarray(self.items.vectors, np.float32)

    def _vectors_of_side(self, side: str, data: Any) -> NDArray[np.float32]:
        sides = self._sides
        schema = sides.item_schema if side == "item" else sides.example_schema(None)
        if side == "item" and _are_ids(data) and len(schema.columns) > 1:
            return self._vectors_of_ids(data)
        if side == "item":
            data = _as_table(data, sides.item)
        opened = self._opened(data, schema, may_be_empty=True)
        parts = []
        for batch in whole_batches(opened, BATCH_ROWS):
            found = (
                sides.item_vectors(batch, self.parameters)
                if side == "item"
                else sides.states(batch, self.parameters, None)
            )
            parts.append(np.asarray(sound(found, side), np.float32))
        return np.concatenate(parts) if parts else np.empty((0, 0), np.float32)

    def _vectors_of_ids(self, ids: Any) -> NDArray[np.float32]:
        """Return the vectors of items that have further fields, by their ids among the loaded items."""
        item = self._sides.item
        opened = self._opened(_as_table(ids, item), _schema_of(item))
        keys = np.concatenate([_keys_in(batch, item) for batch in whole_batches(opened, BATCH_ROWS)])
        places = places_in(self.items.keys, keys)
        if (places < 0).any():
            first = list(ids)[int(np.argmax(places < 0))]
            raise DataError(f"item: {first!r} is none of the {len(self.items.keys):,} items that were loaded")
        return self._item_vectors()[places]

    # --- data ---------------------------------------------------------------------------------------------

    def _opened(self, data: Any, schema: Schema, may_be_empty: bool = False) -> ParquetData:
        return open_data(data, schema, may_be_empty=may_be_empty, key_kinds=dict(self.key_kinds))

    def _opened_unseen(self, data: Any, schema: Schema) -> ParquetData:
        """Open data to measure on: no rows that the training of another split has seen."""
        opened = self._opened(data, schema)
        if self._trained:
            self._trained.check_unseen(opened)
        return opened

    def _is_side(self, field: str) -> bool:
        """Return whether a side of a model that ranks items is meant, and no column of that name."""
        return self.ranks_items and field in ("item", "query")

    def _fields(self) -> dict[str, SparseField | RaggedField]:
        fields: list[SparseField | RaggedField] = [*self.schema.sparse, *self.schema.ragged]
        return {one.name: one for one in fields}

    def _field(self, name: str) -> SparseField | RaggedField:
        field = self._fields().get(name)
        if field is None:
            raise ConfigurationError(unknown_value("field", name, self._fields()))
        return field

    def _vector_columns(self) -> slice:
        for part, at, _state in RowLayout.of(self.table).columns():
            if part.name == VECTORS:
                return at
        raise ConfigurationError(f"{type(self.model).__name__} has no vectors of keys")


def _schema_of(field: SparseField | RaggedField) -> Schema:
    if isinstance(field, RaggedField):
        return Schema(label=None, ragged=[field])
    return Schema(label=None, sparse=[field])


def _columns_of(field: SparseField | RaggedField) -> tuple[str, ...]:
    return (field.name,) if isinstance(field, RaggedField) else field.columns


def _keys_in(batch: Batch, field: SparseField | RaggedField) -> NDArray[np.uint64]:
    """Return the keys of the examples of a batch with this field alone, or of the elements of its lists."""
    if isinstance(field, RaggedField):
        return batch.keys[batch.ragged[field.name].values]
    return batch.keys[batch.sparse[:, 0]]


def _as_table(data: Any, field: SparseField | RaggedField) -> Any:
    """Return values of a field as a table; data that is no list of values is returned as it is."""
    if not _are_ids(data):
        if isinstance(data, str) and not is_uri(data) and not glob(data):
            raise DataError(f"data: no such file or folder: {data}; of one value give a list: [{data!r}]")
        return data
    values = pa.array(list(data))
    if isinstance(field, RaggedField):
        values = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pa.table({_columns_of(field)[0]: values})


def _are_ids(data: Any) -> bool:
    """Return whether data is a list of values, and no path, list of paths, records or table."""
    if isinstance(data, np.ndarray | pa.Array | pa.ChunkedArray):
        return True
    if hasattr(data, "to_numpy") and not (hasattr(data, "columns") or hasattr(data, "schema")):
        return True  # a Series, or an array of pandas
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        return False
    return all(isinstance(one, str | bytes | int | np.integer) or one is None for one in data)
