"""Neural collaborative filtering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from pslib.batch import Batch
from pslib.data.item_catalog import Sampling
from pslib.schema import Schema
from pslib.table.tables import DIM_MAX, PartSpec
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import concat, gather, linear, log_loss, multiply, reshape, split, tower, tower_shapes
from rec_models.matching import MatchingModel
from rec_models.model import DenseVars
from rec_models.options import DROPOUT, NEGATIVES_MAX, size

PAIRS_MAX = 1 << 18
"""Limit of pairs scored at once: 16 MB for a layer of 16 units in float32."""


@dataclass(frozen=True, eq=False, repr=False)
class NCF(MatchingModel):
    """NeuMF: a factorization and an MLP with separate embeddings (He et al., WWW 2017, arXiv:1708.05031).

    User and item are one sparse field each. For every example negative items are drawn uniformly; a drawn
    item that is the example's own is ignored. With a label, examples have the labels of the data.
    """

    dim: Annotated[int, size("Floats of an embedding for the factorization (GMF).", DIM_MAX)] = 16
    dim_mlp: Annotated[int, size("Floats of an embedding for the MLP.", DIM_MAX)] = 16
    hidden: Annotated[tuple[int, ...], size("Units of each hidden layer; empty: GMF alone.")] = (32, 16, 8)
    dropout: Annotated[float, DROPOUT] = 0.0
    negatives: Annotated[int, size("Items drawn per example.", NEGATIVES_MAX)] = 4

    def _problems(self) -> list[str]:
        if len(self.schema.sparse) != 2 or self.schema.dense or self.schema.ragged:
            return ["expected a schema of two sparse fields, user and item"]
        return super()._problems()

    def sampling(self) -> Sampling:
        """Uniform sampling of negative items (section 3.1)."""
        return Sampling(self.item[0], self.negatives, 0.0, each=True)

    def parts(self) -> tuple[PartSpec, ...]:
        """``v``: the two embeddings of a key, side by side."""
        return (PartSpec("v", self._width, self.v_optimizer, self.v_initializer),)

    @property
    def _width(self) -> int:
        return self.dim + self.dim_mlp if self.hidden else self.dim

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the MLP, and of ``h`` over both parts."""
        width = self.dim + (self.hidden[-1] if self.hidden else 0)
        shapes = tower_shapes("mlp", 2 * self.dim_mlp, self.hidden)
        return shapes | {"out.w": (width, 1), "out.b": (1,)}

    def query(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """``p_u`` of both parts."""
        return gather(tape, rows, _column(batch, schema, self.query_schema))

    def items(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """``q_i`` of both parts."""
        return gather(tape, rows, _column(batch, schema, self.item_schema))

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Logits of the pairs, (B,)."""
        p = self.query(tape, batch, self.schema, rows, dense)
        return self._logits(tape, p, self.items(tape, batch, self.schema, rows, dense), dense)

    def _logits(self, tape: Tape, p: Var, q: Var, dense: DenseVars) -> Var:
        """Eq. 12: ``h^T [phi_GMF, phi_MLP]``, whose sigmoid is the probability."""
        if not self.hidden:
            phi = multiply(tape, p, q)
        else:
            p_g, p_m = split(tape, p, (self.dim, self.dim_mlp))
            q_g, q_m = split(tape, q, (self.dim, self.dim_mlp))
            joined = concat(tape, p_m, q_m)
            phi_mlp = tower(tape, joined, dense, "mlp", len(self.hidden), self.dropout)  # eq. 10
            phi = concat(tape, multiply(tape, p_g, q_g), phi_mlp)  # eq. 8
        return reshape(tape, linear(tape, phi, dense["out.w"], dense["out.b"]), ())

    def weight(self, batch: Batch) -> int:
        """Return the number of pairs: examples and their negatives."""
        return len(batch) + int(self._drawn(batch)[0].size)

    def loss(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars, weight: float) -> tuple[Var, Array]:
        """Eq. 7: log loss over examples and negatives."""
        drawn, owners = self._drawn(batch)
        users = _column(batch, self.schema, self.query_schema)
        p = gather(tape, rows, np.concatenate([users, users[owners]]))
        q = gather(tape, rows, np.concatenate([self.item_ids(batch), drawn]))
        logits = self._logits(tape, p, q, dense)
        own = np.ones(len(batch)) if self.schema.label is None else batch.labels
        labels = np.concatenate([own, np.zeros(drawn.size)])
        return log_loss(tape, logits, labels, weight), logits.value[: len(batch)]

    def _drawn(self, batch: Batch) -> tuple[Array, Array]:
        """Return negatives and their examples."""
        owners = np.repeat(np.arange(len(batch)), self.negatives)
        kept = batch.negatives != self.item_ids(batch)[owners]
        return batch.negatives[kept], owners[kept]

    def scores(self, queries: Array, items: Array, dense: Mapping[str, Array]) -> Array:
        """Score every pair by the MLP, in chunks."""
        variables = {name: Var(value) for name, value in dense.items()}
        found = np.empty((len(queries), len(items)), queries.dtype)
        at_once = max(1, PAIRS_MAX // max(1, len(items)))
        for start in range(0, len(queries), at_once):
            some = queries[start : start + at_once]
            p, q = np.repeat(some, len(items), axis=0), np.tile(items, (len(some), 1))
            logits = self._logits(Tape(training=False), Var(p), Var(q), variables).value
            found[start : start + at_once] = logits.reshape(len(some), len(items))
        return found


def _column(batch: Batch, schema: Schema, own: Schema) -> Array:
    """Return the positions of the keys of a side's one field."""
    return batch.sparse[:, schema.sparse.index(own.sparse[0])]
