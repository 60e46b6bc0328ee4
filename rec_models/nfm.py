"""Neural factorization machine."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from pslib.initializers import Initializer
from pslib.optimizers import Optimizer
from pslib.tables import PartSpec
from rec_models.layers import add, bi_interaction, embedding, mlp, mlp_shapes, split
from rec_models.model import DenseVars, Model
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER, W_INITIALIZER
from rec_models.tape import Tape, Var

__all__ = ["NFM"]


@dataclass(frozen=True, eq=False)
class NFM(Model):
    """An MLP over the pooled pairs of all fields (He and Chua, SIGIR 2017, arXiv:1708.05027).

    Dense fields enter the first-order term only; pairs are of sparse and ragged fields.

    Attributes
    ----------
    dim : int
        Floats of an embedding.
    hidden : tuple of int
        Units of each hidden layer.
    dropout : float
        Share of units dropped after each hidden layer.
    batch_norm : bool
        Whether the units of hidden layers are normalised.
    w_optimizer, v_optimizer : Optimizer
        Of first-order weights and of embeddings.
    w_initializer, v_initializer : Initializer
    """

    dim: int = 10
    hidden: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.0
    batch_norm: bool = False
    w_optimizer: Optimizer = DEFAULT_OPTIMIZER
    w_initializer: Initializer = W_INITIALIZER
    v_optimizer: Optimizer = DEFAULT_OPTIMIZER
    v_initializer: Initializer = V_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``w``: the first-order weight of a key; ``v``: its embedding."""
        return (
            PartSpec("w", 1, self.w_optimizer, self.w_initializer),
            PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),
        )

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """First-order weights of the dense fields, then the MLP, whose output bias is the model's."""
        return self._first_order_shapes() | mlp_shapes(self.dim, self.hidden, self.batch_norm)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 2 and 8: ``y = w_0 + <w, x> + h^T MLP(f_BI(V x))``."""
        w, v = split(tape, rows, (1, self.dim))
        f_bi = bi_interaction(tape, embedding(tape, v, batch, self.schema))  # eq. 4
        deep = mlp(tape, f_bi, dense, len(self.hidden), self.dropout)  # eq. 5 to 7; holds w_0
        return add(tape, *self._first_order(tape, batch, w, dense), deep)
