"""Base classes of matching models: vectors of a query, usually a user, and of an item."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Batch
from pslib.data.item_catalog import Sampling
from pslib.schema import Schema
from pslib.settings import Setting
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import concat, embedding, gather, rank_hinge, row_dot, take_fields
from rec_models.model import DenseVars, EmbeddedModel, vector_fields
from rec_models.options import NEGATIVES_MAX, size


@dataclass(frozen=True, eq=False, repr=False)
class MatchingModel(EmbeddedModel):
    """Base of models that match queries and items.

    An example is a query with its matching item. The fields named by ``item`` are the item's, all others the
    query's.
    """

    tasks: ClassVar[tuple[int, int]] = (0, 1)
    examples_independent: ClassVar[bool] = False
    by_product: ClassVar[bool] = False
    """True if scores are inner products of vectors."""

    item: Annotated[
        tuple[str, ...], Setting("Fields of an item. The first is sparse, and its key identifies the item.")
    ] = ()

    def _problems(self) -> list[str]:
        schema = self.schema
        names = _names(schema)
        problems = [f"item: {name!r} is no field of the schema" for name in self.item if name not in names]
        if not self.item or self.item[0] not in {field.name for field in schema.sparse}:
            problems.append(
                f"item: expected the fields of an item, first the sparse one that names it, got {self.item!r}"
            )
        if set(names) <= set(self.item):
            problems.append("item: expected fields of a query beside those of the item, got none")
        return problems

    @property
    def item_schema(self) -> Schema:
        """Schema of the fields of an item."""
        return _only(self.schema, set(self.item))

    @property
    def query_schema(self) -> Schema:
        """Schema of the fields of a query."""
        return _only(self.schema, set(_names(self.schema)) - set(self.item))

    def sampling(self) -> Sampling | None:
        """Sampling of negatives for each batch; None: no negatives."""
        return None

    @abstractmethod
    def query(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """Compute vectors of queries, (B, M); ``schema`` has the batch's fields, with those of a query."""

    @abstractmethod
    def items(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """Compute vectors of items, (B, M); ``schema`` has the batch's fields, with those of an item."""

    def item_ids(self, batch: Batch) -> Array:
        """Return the positions of the items' keys in ``batch.keys``, (B,)."""
        names = [field.name for field in self.schema.sparse]
        return np.ascontiguousarray(batch.sparse[:, names.index(self.item[0])])

    # --- ranking ------------------------------------------------------------------------------------------

    def encode(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Compute vectors of queries, (B, M), for a batch with the fields of `query_schema`."""
        return self.query(*self._untaped(batch, self.query_schema, rows, dense)).value

    def encode_items(self, batch: Batch, rows: Array, dense: Mapping[str, Array]) -> Array:
        """Compute vectors of items, (B, M), for a batch with the fields of `item_schema`."""
        return self.items(*self._untaped(batch, self.item_schema, rows, dense)).value

    @abstractmethod
    def scores(self, queries: Array, items: Array, dense: Mapping[str, Array]) -> Array:
        """Compute scores of every query with every item, (B, V), from the results of the encoders."""

    @staticmethod
    def _untaped(
        batch: Batch, schema: Schema, rows: Array, dense: Mapping[str, Array]
    ) -> tuple[Tape, Batch, Schema, Var, DenseVars]:
        variables = {name: Var(value) for name, value in dense.items()}
        return Tape(training=False), batch, schema, Var(rows), variables

    # --- fields -------------------------------------------------------------------------------------------

    def side(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, own: Schema) -> Var:
        """Concatenate the vectors and the dense fields of one side, (B, N).

        Parameters
        ----------
        schema : Schema
            Schema of the batch.
        own : Schema
            Schema of the side.
        """
        inputs: list[Var] = []
        if own.sparse or own.ragged:
            every = vector_fields(schema)
            chosen = [every.index(name) for name in vector_fields(own)]
            vectors = embedding(tape, rows, batch, schema)
            inputs.append(vectors if len(chosen) == len(every) else take_fields(tape, vectors, chosen))
        if own.dense:
            names = [field.name for field in schema.dense]
            chosen = [names.index(field.name) for field in own.dense]
            inputs.append(Var(batch.dense[:, chosen].astype(rows.value.dtype, copy=False)))
        return concat(tape, *inputs)

    def side_width(self, own: Schema) -> int:
        """Return the floats per example of `side`."""
        return self.dim * (len(own.sparse) + len(own.ragged)) + len(own.dense)


@dataclass(frozen=True, eq=False, repr=False)
class ProductModel(MatchingModel):
    """Base of models with vector products as scores, trained against the other items of a batch.

    With a label, examples of label 0 are not matches: their items serve only as negatives of others.
    """

    by_product: ClassVar[bool] = True

    @abstractmethod
    def match_loss(
        self, tape: Tape, u: Var, v: Var, batch: Batch, rows: Var, dense: DenseVars, weight: int
    ) -> Var:
        """Compute the loss of a batch, ().

        Parameters
        ----------
        u, v : (B, M)
            Vectors of queries and of their items.
        rows : (U, D)
        dense : mapping of name to Var
        weight : int
            Divisor of the mean.
        """

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Compute the score of each query with its item, (B,)."""
        u = self.query(tape, batch, self.schema, rows, dense)
        return row_dot(tape, u, self.items(tape, batch, self.schema, rows, dense))

    def weight(self, batch: Batch) -> int:
        """Return the number of matching examples."""
        return self.matches(batch).size

    def loss(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, weight: float) -> tuple[Var, Array]:
        """Compute `match_loss`, and the scores of the pairs."""
        u = self.query(tape, batch, self.schema, rows, dense)
        v = self.items(tape, batch, self.schema, rows, dense)
        logits = np.einsum("bm,bm->b", u.value, v.value)
        return self.match_loss(tape, u, v, batch, rows, dense, int(weight)), logits

    def matches(self, batch: Batch) -> Array:
        """Return the positions of matching examples: all if the schema has no label."""
        return np.arange(len(batch)) if self.schema.label is None else np.flatnonzero(batch.labels)

    def matched(self, tape: Tape, x: Var, batch: Batch) -> Var:
        """Select the rows of matching examples."""
        return x if self.schema.label is None else gather(tape, x, self.matches(batch))

    def scores(self, queries: Array, items: Array, dense: Mapping[str, Array]) -> Array:
        """Compute products of vectors, (B, V)."""
        return queries @ items.T


@dataclass(frozen=True, eq=False, repr=False)
class CosineHinge(ProductModel):
    """Base of models with vectors of length 1 and a hinge loss.

    An example tries other items until one violates the margin, and learns from that one.
    """

    margin: Annotated[
        float,
        Setting("Required difference of the cosines with the example's item and another.", gt=0),
    ] = 0.5
    trials: Annotated[int, size("Number of items that an example tries.", NEGATIVES_MAX)] = 16

    def match_loss(
        self, tape: Tape, u: Var, v: Var, batch: Batch, rows: Var, dense: DenseVars, weight: int
    ) -> Var:
        """``max(0, margin - cos(u, v) + cos(u, v'))``."""
        ids, where = self.item_ids(batch), self.matches(batch)
        others, other_ids = self.others(tape, v, batch, rows, dense)
        return rank_hinge(
            tape,
            self.matched(tape, u, batch),
            self.matched(tape, v, batch),
            others,
            (ids[where], other_ids),
            (where + 1) % max(1, other_ids.size),
            margin=self.margin,
            trials=self.trials,
            weight=weight,
        )

    def others(
        self, tape: Tape, v: Var, batch: Batch, rows: Var, dense: DenseVars
    ) -> tuple[Var, NDArray[np.integer]]:
        """Return vectors of the items to try, (K, M), and their positions in ``batch.keys``: the batch's."""
        return v, self.item_ids(batch)


def _names(schema: Schema) -> list[str]:
    return [*(field.name for field in schema.dense), *vector_fields(schema)]


def _only(schema: Schema, names: set[str]) -> Schema:
    """Return a schema of the named fields, without a label."""
    return Schema(
        label=None,
        dense=[field for field in schema.dense if field.name in names],
        sparse=[field for field in schema.sparse if field.name in names],
        ragged=[field for field in schema.ragged if field.name in names],
    )
