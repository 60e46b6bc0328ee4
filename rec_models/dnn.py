"""Embeddings and an MLP."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import concat
from rec_models.model import DenseVars, MLPModel


@dataclass(frozen=True, eq=False, repr=False)
class DNN(MLPModel):
    """An MLP over the vectors of all fields (Covington, Adams and Sargin, RecSys 2016, section 4)."""

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the MLP."""
        return self._mlp_shapes(self._mlp_width(self.dim))

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """``y = MLP([e_1, ..., e_m, x_dense])``."""
        e = self._vectors(tape, batch, rows)
        a0 = concat(tape, *self._mlp_input(batch, e))
        return self._mlp(tape, a0, dense)
