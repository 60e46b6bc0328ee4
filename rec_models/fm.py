"""Factorization machine."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import add, embedding, fm, split
from rec_models.model import DenseVars, WeightedModel


@dataclass(frozen=True, eq=False, repr=False)
class FM(WeightedModel):
    """Factorization machine of second order (Rendle, ICDM 2010).

    Dense fields enter the first-order term only; pairs are of sparse and ragged fields.
    """

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Bias, and the weights of the dense fields."""
        return {"bias": (1,)} | self._first_order_shapes()

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 1: ``y = w_0 + <w, x> + sum over i < j of <v_i, v_j> x_i x_j``."""
        w, v = split(tape, rows, (1, self.dim))
        first = self._first_order(tape, batch, w, dense)
        pairs = fm(tape, embedding(tape, v, batch, self.schema))
        return add(tape, *first, pairs, dense["bias"])
