"""Towers: the example side and the item side of a ranking model, and their vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.data.arrow_data import open_data
from pslib.data.column_types import KeyKinds
from pslib.data.dataset import ParquetData
from pslib.data.item_catalog import NegativeSampler, Sampling, catalogue_of
from pslib.data.order import Order
from pslib.data.reader import LeaseReader
from pslib.errors import ConfigurationError
from pslib.schema import RaggedField, Schema, SparseField

Array: TypeAlias = NDArray[Any]

PULL_KEYS = 65_536
"""Number of items whose rows are read with one request."""
ITEM_ROWS = 8192
"""Number of items whose fields are read together."""


@runtime_checkable
class RankingModel(Protocol):
    """A session model: item rows are ``bias, vector``; their product with a state is their score."""

    @property
    def schema(self) -> Schema:
        """Schema with one ragged field: the items of a session."""
        ...

    @property
    def history(self) -> str:
        """Name of that field."""
        ...

    def encode(self, batch: Batch, rows: Array, dense: dict[str, Array], field: str) -> Array:
        """Return (B, D) states at the end of the items in ``field``."""
        ...


@runtime_checkable
class MatchingModel(Protocol):
    """A model of queries and items with separate fields; see `rec_models.matching`."""

    @property
    def item(self) -> tuple[str, ...]:
        """Fields of an item; the first one is its id."""
        ...

    @property
    def by_product(self) -> bool:
        """True if scores are products of vectors."""
        ...

    @property
    def query_schema(self) -> Schema:
        """Fields of a query."""
        ...

    @property
    def item_schema(self) -> Schema:
        """Fields of an item."""
        ...

    def encode(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Return a (B, M) vector for each query."""
        ...

    def encode_items(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Return a (B, M) vector for each item."""
        ...

    def scores(self, queries: Array, items: Array, dense: Mapping[str, Array]) -> Array:
        """Return (B, V) scores of the vectors of queries and items."""
        ...


def sampler_of(model: object, data: ParquetData, seed: int) -> NegativeSampler | None:
    """Return the item sampler of a model whose ``sampling()`` requests one; else None."""
    asked: Callable[[], Sampling | None] | None = getattr(model, "sampling", None)
    sampling = asked() if asked else None
    return NegativeSampler(data, sampling, seed) if sampling else None


class Parameters(Protocol):
    """Interface of a model's parameters, read from the servers."""

    @property
    def dense(self) -> dict[str, Array]:
        """Dense parameters by name."""
        ...

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return (n, D) rows of keys."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RankedItems:
    """Items to rank.

    Attributes
    ----------
    keys : (V,) uint64
        Ascending.
    values : pyarrow.Array of V
        Their names in the data.
    vectors : (V, M)
        Their vectors.
    """

    keys: NDArray[np.uint64]
    values: pa.Array
    vectors: Array

    def places(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the place of each key among the items; -1 for others."""
        return places_in(self.keys, keys)


class Sides(ABC):
    """Sides of a ranking model: its view of an example and of an item.

    Attributes
    ----------
    item : SparseField
        Field of the item id, in rows of items.
    item_schema : Schema
        Schema of rows of items.
    named_in : Schema
        Schema of the data whose items are ranked: rows of items, or sessions of items.
    by_product : bool
        True if a score is the product of two vectors.
    model_name : str
        Class of the model, for errors.
    """

    item: SparseField
    item_schema: Schema
    named_in: Schema
    by_product = True
    model_name: str

    @abstractmethod
    def goal(self, target: str | None) -> SparseField:
        """Return the target item's field; None: the default column of this kind of model."""

    @abstractmethod
    def example_schema(self, history: str | None, goal: Sequence[SparseField] = ()) -> Schema:
        """Return the schema of examples, with or without a target, which is the last sparse field."""

    @abstractmethod
    def seen(self, history: str | None) -> str | None:
        """Return the ragged field of examples with the earlier items, if any."""

    @abstractmethod
    def states(self, batch: Batch, parameters: Parameters, history: str | None) -> Array:
        """Return a (B, M) vector for each example."""

    @abstractmethod
    def item_vectors(self, batch: Batch, parameters: Parameters) -> Array:
        """Return a (B, M) vector for each row of items."""

    @abstractmethod
    def items(self, found_in: Any, parameters: Parameters, key_kinds: KeyKinds | None = None) -> RankedItems:
        """Return all items in the data; ``key_kinds`` as for `ParquetData`."""

    def scores(self, states: Array, vectors: Array, parameters: Parameters) -> Array:
        """Return (B, n) scores of items."""
        return states @ vectors.T


def ranks_items(model: object) -> bool:
    """Return whether a model ranks items, instead of predicting clicks."""
    return isinstance(model, MatchingModel | RankingModel)


def sides_of(model: object) -> Sides:
    """Return the two sides of a model.

    Raises
    ------
    ConfigurationError
        If the model does not rank items.
    """
    if isinstance(model, MatchingModel):
        return _MatchingSides(model)
    if isinstance(model, RankingModel):
        return _SessionSides(model)
    raise ConfigurationError(f"{type(model).__name__} predicts clicks and ranks no items: evaluate it")


class _SessionSides(Sides):
    """Session model sides: items are rows; a 1 is prepended to the state, for the bias before the vector."""

    def __init__(self, model: RankingModel) -> None:
        own = model.schema.ragged[0]
        self.model_name = type(model).__name__
        self._model, self._vocabulary = model, own.vocabulary or own.name
        self.item = SparseField("item", self._vocabulary)
        self.item_schema = Schema(label=None, sparse=[self.item])
        self.named_in = model.schema

    def goal(self, target: str | None) -> SparseField:
        return SparseField(target or "target", self._vocabulary)

    def example_schema(self, history: str | None, goal: Sequence[SparseField] = ()) -> Schema:
        lists = RaggedField(self.seen(history), vocabulary=self._vocabulary)
        return Schema(label=None, sparse=goal, ragged=[lists])

    def seen(self, history: str | None) -> str:
        return history or "prefix"

    def states(self, batch: Batch, parameters: Parameters, history: str | None) -> Array:
        rows = parameters.rows(batch.keys)
        states = self._model.encode(batch, rows, parameters.dense, self.seen(history))
        return np.concatenate([np.ones((len(states), 1), states.dtype), states], axis=1)

    def item_vectors(self, batch: Batch, parameters: Parameters) -> Array:
        return parameters.rows(batch.keys)[batch.sparse[:, 0]]

    def items(self, found_in: Any, parameters: Parameters, key_kinds: KeyKinds | None = None) -> RankedItems:
        data = open_data(found_in, self.named_in, key_kinds=key_kinds, name="items")
        every = catalogue_of(data, self.named_in.ragged[0])
        keys, values = _without_null(*every)
        starts = range(0, keys.size, PULL_KEYS)
        rows = np.concatenate([parameters.rows(keys[i : i + PULL_KEYS]) for i in starts])
        return RankedItems(keys, values, rows)


class _MatchingSides(Sides):
    """Matching model sides: queries and items with separate fields."""

    def __init__(self, model: MatchingModel) -> None:
        self.model_name = type(model).__name__
        self._model, self.by_product = model, model.by_product
        self.item_schema = self.named_in = model.item_schema
        self.item = next(field for field in self.item_schema.sparse if field.name == model.item[0])

    def goal(self, target: str | None) -> SparseField:
        own = self.item
        return own if target in (None, own.name) else SparseField(str(target), own.vocabulary or own.name)

    def example_schema(self, history: str | None, goal: Sequence[SparseField] = ()) -> Schema:
        query, own = self._model.query_schema, self.item
        names = [
            *(one.name for one in query.dense),
            *(one.name for one in query.sparse),
            *(one.name for one in query.ragged),
        ]
        for one in goal:
            if one.name in names:
                raise ConfigurationError(
                    f"target: expected a column beside those of a query, {', '.join(names)}, got "
                    f"{one.name!r}; name the column of the item that is looked for: target=COLUMN (job "
                    "file: ranking.target)"
                )
        lists: list[RaggedField] = []
        if history is not None and history not in {field.name for field in query.ragged}:
            lists = [RaggedField(history, vocabulary=own.vocabulary or own.name)]
        sparse, ragged = [*query.sparse, *goal], [*query.ragged, *lists]
        return Schema(label=None, dense=query.dense, sparse=sparse, ragged=ragged)

    def seen(self, history: str | None) -> str | None:
        return history

    def states(self, batch: Batch, parameters: Parameters, history: str | None) -> Array:
        fields = len(self._model.query_schema.sparse)  # without the target
        cut = replace(batch, sparse=np.ascontiguousarray(batch.sparse[:, :fields]))
        return self._model.encode(cut, parameters.rows(batch.keys), parameters.dense)

    def item_vectors(self, batch: Batch, parameters: Parameters) -> Array:
        return self._model.encode_items(batch, parameters.rows(batch.keys), parameters.dense)

    def items(self, found_in: Any, parameters: Parameters, key_kinds: KeyKinds | None = None) -> RankedItems:
        """Return all items; of duplicates the first counts."""
        data = open_data(found_in, self.named_in, key_kinds=key_kinds, name="items")
        keys, values = catalogue_of(data, self.item)
        column = self.item_schema.sparse.index(self.item)
        vectors, missing = np.empty((0, 0)), np.ones(keys.size, np.bool_)
        for batch in whole_batches(data, ITEM_ROWS):
            places = places_in(keys, batch.keys[batch.sparse[:, column]])
            which, first = np.unique(places, return_index=True)
            first = first[missing[which]]
            if not first.size:
                continue
            some = self.item_vectors(batch, parameters)
            if not vectors.size:
                vectors = np.empty((keys.size, some.shape[1]), some.dtype)
            vectors[places[first]] = some[first]
            missing[places] = False
        named, values = _without_null(keys, values)
        return RankedItems(
            named, values, vectors if named.size == keys.size else vectors[np.isin(keys, named)]
        )

    def scores(self, states: Array, vectors: Array, parameters: Parameters) -> Array:
        return self._model.scores(states, vectors, parameters.dense)


def _without_null(keys: NDArray[np.uint64], values: pa.Array) -> tuple[NDArray[np.uint64], pa.Array]:
    """Drop null, which is a key but not an item to present.

    Raises
    ------
    ConfigurationError
        If there is no other item.
    """
    if values.null_count == 0:
        return keys, values
    named = values.is_valid()
    if values.null_count == len(values):
        raise ConfigurationError("items: expected items that have a name, got null alone")
    return keys[named.to_numpy(zero_copy_only=False)], values.filter(named)


def places_in(keys: NDArray[np.uint64], some: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the place of each of ``some`` in ascending ``keys``, at least one; -1 for others."""
    places = np.minimum(np.searchsorted(keys, some), keys.size - 1)
    return np.where(keys[places] == some, places, -1)


def whole_batches(data: ParquetData, batch_rows: int) -> Iterator[Batch]:
    """Yield all rows of the data in order, keyed."""
    if not data.rows:
        return
    order = Order(0, [group.rows for group in data.row_groups], batch_rows, shuffle=False)
    with closing(LeaseReader(data, data.schema, order, batch_rows)) as reader:
        for lease in range(order.leases(0)):
            yield from reader.batches(0, lease)
