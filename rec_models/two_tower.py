"""Two towers: DSSM with sampled softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from pslib.batch import Batch
from pslib.data.item_catalog import Sampling
from pslib.schema import Schema
from pslib.settings import Setting
from pslib.table.tables import DIM_MAX
from rec_models.engine.tape import Array, Tape, Var
from rec_models.layers import multiply, normalize, sampled_softmax, tower_output, tower_shapes
from rec_models.layers.ranking_losses import Candidates
from rec_models.matching import ProductModel
from rec_models.model import DenseVars
from rec_models.options import DROPOUT, size


@dataclass(frozen=True, eq=False, repr=False)
class TwoTower(ProductModel):
    """Two MLPs whose outputs match by their cosine (DSSM: Huang et al., CIKM 2013, 10.1145/2505515.2505665).

    The other items of the batch are the negatives, corrected for how often items occur (Yi et al., RecSys
    2019, 10.1145/3298689.3346996).
    """

    hidden: Annotated[tuple[int, ...], size("Units of each hidden layer of a tower.")] = (64,)
    out: Annotated[int, size("Floats of the vectors of queries and items.", DIM_MAX)] = 32
    dropout: Annotated[float, DROPOUT] = 0.0
    similarity: Annotated[
        str, Setting("Similarity of the vectors of query and item.", choices=("cosine", "dot"))
    ] = "cosine"
    temperature: Annotated[float, Setting("Divisor of similarities.", gt=0)] = 0.1
    logq: Annotated[bool, Setting("Correct the loss for the frequency of items in batches.")] = True

    def sampling(self) -> Sampling | None:
        """Count items for the correction, without drawing any."""
        return Sampling(self.item[0], 0, 1.0) if self.logq else None

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hidden layers and output of each tower."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, own in (("query", self.query_schema), ("item", self.item_schema)):
            shapes |= tower_shapes(name, self.side_width(own), self.hidden, out=self.out)
        return shapes

    def query(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """``u / tau``, the query's vector by its tower and the temperature."""
        x = self.side(tape, batch, schema, rows, self.query_schema)
        return self._tower(tape, x, dense, "query", 1 / self.temperature)

    def items(self, tape: Tape, batch: Batch, schema: Schema, rows: Var, dense: DenseVars) -> Var:
        """``v``, the item's vector by its tower."""
        x = self.side(tape, batch, schema, rows, self.item_schema)
        return self._tower(tape, x, dense, "item", 1.0)

    def _tower(self, tape: Tape, x: Var, dense: DenseVars, name: str, scale: float) -> Var:
        y = tower_output(tape, x, dense, name, len(self.hidden), self.dropout)
        if self.similarity == "cosine":
            return normalize(tape, y, scale)
        return multiply(tape, y, Var(np.ones((1, self.out), y.value.dtype)), scale)

    def match_loss(
        self, tape: Tape, u: Var, v: Var, batch: Batch, rows: Var, dense: DenseVars, weight: int
    ) -> Var:
        """Yi et al., eq. 4 and 5: ``s(x_i, y_j) - log p_j`` over all items of the batch."""
        ids, where = self.item_ids(batch), self.matches(batch)
        log_q = batch.log_q[ids] if self.logq else np.zeros(ids.size, np.float32)

        def candidates(vectors: Var, rows: Array) -> Candidates:
            biases = Var(np.zeros((rows.size, 1), u.value.dtype))
            return Candidates(vectors, biases, ids[rows], log_q[rows])

        targets = candidates(self.matched(tape, v, batch), where)
        others = candidates(v, np.arange(ids.size))
        return sampled_softmax(tape, self.matched(tape, u, batch), targets, others, weight)
