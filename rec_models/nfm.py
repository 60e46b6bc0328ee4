"""Neural factorization machine."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import add, bi_interaction, embedding, split
from rec_models.model import DenseVars, MLPModel, WeightedModel


@dataclass(frozen=True, eq=False, repr=False)
class NFM(MLPModel, WeightedModel):
    """An MLP over the pooled pairs of all fields (He and Chua, SIGIR 2017, arXiv:1708.05027).

    Dense fields enter the first-order term only; pairs are of sparse and ragged fields.
    """

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """First-order weights of the dense fields, then the MLP, whose output bias is the model's."""
        return self._first_order_shapes() | self._mlp_shapes(self.dim)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 2 and 8: ``y = w_0 + <w, x> + h^T MLP(f_BI(V x))``."""
        w, v = split(tape, rows, (1, self.dim))
        f_bi = bi_interaction(tape, embedding(tape, v, batch, self.schema))  # eq. 4
        deep = self._mlp(tape, f_bi, dense)  # eq. 5 to 7; holds w_0
        return add(tape, *self._first_order(tape, batch, w, dense), deep)
