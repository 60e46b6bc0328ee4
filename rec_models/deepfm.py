"""DeepFM."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from pslib.initializers import Initializer
from pslib.optimizers import Optimizer
from pslib.tables import PartSpec
from rec_models.layers import add, concat, fm, mlp, mlp_shapes, split
from rec_models.model import DenseVars, Model
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER, W_INITIALIZER
from rec_models.tape import Tape, Var

__all__ = ["DeepFM"]


@dataclass(frozen=True, eq=False)
class DeepFM(Model):
    """A factorization machine and an MLP on the same embeddings (Guo et al., IJCAI 2017, arXiv:1703.04247).

    Dense fields enter the first-order term and the MLP; pairs are of sparse and ragged fields.

    Attributes
    ----------
    dim : int
        Floats of an embedding, the paper's k.
    hidden : tuple of int
        Units of each hidden layer.
    dropout : float
        Share of units dropped after each hidden layer.
    w_optimizer, v_optimizer : Optimizer
        Of first-order weights and of embeddings.
    w_initializer, v_initializer : Initializer
    batch_norm : bool
        Whether the units of hidden layers are normalised.
    """

    dim: int = 10
    hidden: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.0
    w_optimizer: Optimizer = DEFAULT_OPTIMIZER
    w_initializer: Initializer = W_INITIALIZER
    v_optimizer: Optimizer = DEFAULT_OPTIMIZER
    v_initializer: Initializer = V_INITIALIZER
    batch_norm: bool = False

    def parts(self) -> tuple[PartSpec, ...]:
        """``w``: the first-order weight of a key; ``v``: its embedding."""
        return (
            PartSpec("w", 1, self.w_optimizer, self.w_initializer),
            PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),
        )

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """First-order weights of the dense fields, then the MLP, whose output bias is the model's."""
        return self._first_order_shapes() | mlp_shapes(
            self._mlp_width(self.dim), self.hidden, self.batch_norm
        )

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 1: ``y = y_FM + y_DNN`` before the sigmoid."""
        w, v = split(tape, rows, (1, self.dim))
        e = self._vectors(tape, batch, v)
        y_fm = (*self._first_order(tape, batch, w, dense), fm(tape, e))  # eq. 2
        a0 = concat(tape, *self._mlp_input(batch, e))  # eq. 3
        y_dnn = mlp(tape, a0, dense, len(self.hidden), self.dropout)  # eq. 4
        return add(tape, *y_fm, y_dnn)
