"""Embeddings and an MLP."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from pslib.initializers import Initializer
from pslib.optimizers import Optimizer
from pslib.tables import PartSpec
from rec_models.layers import concat, mlp, mlp_shapes
from rec_models.model import DenseVars, Model
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER
from rec_models.tape import Tape, Var

__all__ = ["DNN"]


@dataclass(frozen=True, eq=False)
class DNN(Model):
    """An MLP over the vectors of all fields (Covington, Adams and Sargin, RecSys 2016, section 4).

    Attributes
    ----------
    dim : int
        Floats of an embedding.
    hidden : tuple of int
        Units of each hidden layer.
    dropout : float
        Share of units dropped after each hidden layer.
    v_optimizer : Optimizer
    v_initializer : Initializer
    batch_norm : bool
        Whether the units of hidden layers are normalised.
    """

    dim: int = 10
    hidden: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.0
    v_optimizer: Optimizer = DEFAULT_OPTIMIZER
    v_initializer: Initializer = V_INITIALIZER
    batch_norm: bool = False

    def parts(self) -> tuple[PartSpec, ...]:
        """``v``: the embedding of a key."""
        return (PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),)

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the MLP."""
        return mlp_shapes(self._mlp_width(self.dim), self.hidden, self.batch_norm)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """``y = MLP([e_1, ..., e_m, x_dense])``."""
        e = self._vectors(tape, batch, rows)
        a0 = concat(tape, *self._mlp_input(batch, e))
        return mlp(tape, a0, dense, len(self.hidden), self.dropout)
