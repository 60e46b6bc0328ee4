"""DeepFM."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import add, concat, fm, split
from rec_models.model import DenseVars, MLPModel, WeightedModel


@dataclass(frozen=True, eq=False, repr=False)
class DeepFM(MLPModel, WeightedModel):
    """A factorization machine and an MLP on the same embeddings (Guo et al., IJCAI 2017, arXiv:1703.04247).

    Dense fields enter the first-order term and the MLP; pairs are of sparse and ragged fields.
    """

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """First-order weights of the dense fields, then the MLP, whose output bias is the model's."""
        return self._first_order_shapes() | self._mlp_shapes(self._mlp_width(self.dim))

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 1: ``y = y_FM + y_DNN`` before the sigmoid."""
        w, v = split(tape, rows, (1, self.dim))
        e = self._vectors(tape, batch, v)
        y_fm = (*self._first_order(tape, batch, w, dense), fm(tape, e))  # eq. 2
        a0 = concat(tape, *self._mlp_input(batch, e))  # eq. 3
        y_dnn = self._mlp(tape, a0, dense)  # eq. 4
        return add(tape, *y_fm, y_dnn)
