"""Factorization machine."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from pslib.initializers import Initializer
from pslib.optimizers import Optimizer
from pslib.tables import PartSpec
from rec_models.layers import add, embedding, fm, split
from rec_models.model import DenseVars, Model
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER, W_INITIALIZER
from rec_models.tape import Tape, Var

__all__ = ["FM"]


@dataclass(frozen=True, eq=False)
class FM(Model):
    """Factorization machine of second order (Rendle, ICDM 2010).

    Dense fields enter the first-order term only; pairs are of sparse and ragged fields.

    Attributes
    ----------
    dim : int
        Floats of a factor vector, the paper's k.
    w_optimizer, v_optimizer : Optimizer
        Of weights and of factor vectors.
    w_initializer, v_initializer : Initializer
    """

    dim: int = 10
    w_optimizer: Optimizer = DEFAULT_OPTIMIZER
    w_initializer: Initializer = W_INITIALIZER
    v_optimizer: Optimizer = DEFAULT_OPTIMIZER
    v_initializer: Initializer = V_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``w``: the weight of a key; ``v``: its factors."""
        return (
            PartSpec("w", 1, self.w_optimizer, self.w_initializer),
            PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),
        )

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Bias, and the weights of the dense fields."""
        return {"bias": (1,)} | self._first_order_shapes()

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 1: ``y = w_0 + <w, x> + sum over i < j of <v_i, v_j> x_i x_j``."""
        w, v = split(tape, rows, (1, self.dim))
        first = self._first_order(tape, batch, w, dense)
        pairs = fm(tape, embedding(tape, v, batch, self.schema))
        return add(tape, *first, pairs, dense["bias"])
