"""Embeddings and an MLP."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.embedded import EmbeddedModel
from rec_models.layers import concat, mlp, mlp_shapes
from rec_models.model import DenseVars
from rec_models.tape import Tape, Var

__all__ = ["DNN"]


@dataclass(frozen=True, eq=False)
class DNN(EmbeddedModel):
    """An MLP over the vectors of all fields (Covington, Adams and Sargin, RecSys 2016, section 4).

    Attributes
    ----------
    hidden : tuple of int
        Units of each hidden layer.
    dropout : float
        Share of units dropped after each hidden layer.
    batch_norm : bool
        Whether the units of hidden layers are normalised.
    """

    hidden: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.0
    batch_norm: bool = False

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the MLP."""
        return mlp_shapes(self._mlp_width(self.dim), self.hidden, self.batch_norm)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """``y = MLP([e_1, ..., e_m, x_dense])``."""
        e = self._vectors(tape, batch, rows)
        a0 = concat(tape, *self._mlp_input(batch, e))
        return mlp(tape, a0, dense, len(self.hidden), self.dropout)
