"""Neural factorization machine."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.embedded import WeightedModel
from rec_models.layers import add, bi_interaction, embedding, mlp, mlp_shapes, split
from rec_models.model import DenseVars
from rec_models.tape import Tape, Var

__all__ = ["NFM"]


@dataclass(frozen=True, eq=False)
class NFM(WeightedModel):
    """An MLP over the pooled pairs of all fields (He and Chua, SIGIR 2017, arXiv:1708.05027).

    Dense fields enter the first-order term only; pairs are of sparse and ragged fields.

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
        """First-order weights of the dense fields, then the MLP, whose output bias is the model's."""
        return self._first_order_shapes() | mlp_shapes(self.dim, self.hidden, self.batch_norm)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 2 and 8: ``y = w_0 + <w, x> + h^T MLP(f_BI(V x))``."""
        w, v = split(tape, rows, (1, self.dim))
        f_bi = bi_interaction(tape, embedding(tape, v, batch, self.schema))  # eq. 4
        deep = mlp(tape, f_bi, dense, len(self.hidden), self.dropout)  # eq. 5 to 7; holds w_0
        return add(tape, *self._first_order(tape, batch, w, dense), deep)
