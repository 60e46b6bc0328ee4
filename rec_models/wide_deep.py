"""Wide & Deep."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from pslib.initializers import Initializer
from pslib.optimizers import Optimizer
from pslib.tables import PartSpec
from rec_models.layers import add, concat, mlp, mlp_shapes, split
from rec_models.model import DenseVars, Model
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER, W_INITIALIZER
from rec_models.tape import Tape, Var

__all__ = ["WideDeep"]


@dataclass(frozen=True, eq=False)
class WideDeep(Model):
    """A linear model and an MLP trained as one (Cheng et al., DLRS 2016, arXiv:1606.07792).

    The paper's crossed features (eq. 1) are columns like any other: make them in the data, name them sparse.

    Attributes
    ----------
    dim : int
        Floats of an embedding.
    hidden : tuple of int
        Units of each hidden layer.
    dropout : float
        Share of units dropped after each hidden layer.
    w_optimizer, v_optimizer : Optimizer
        Of the wide weights and of the embeddings; the paper's are FTRL with L1 and Adagrad.
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
        """``w``: the wide weight of a key; ``v``: its embedding."""
        return (
            PartSpec("w", 1, self.w_optimizer, self.w_initializer),
            PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),
        )

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Wide weights of the dense fields, then the MLP, whose output bias is the model's."""
        return self._first_order_shapes() | mlp_shapes(
            self._mlp_width(self.dim), self.hidden, self.batch_norm
        )

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 3: ``y = w_wide [x, phi(x)] + w_deep a_L + b``."""
        w, v = split(tape, rows, (1, self.dim))
        wide = self._first_order(tape, batch, w, dense)
        a0 = concat(tape, *self._mlp_input(batch, self._vectors(tape, batch, v)))
        deep = mlp(tape, a0, dense, len(self.hidden), self.dropout)  # eq. 2 layer by layer; holds b
        return add(tape, *wide, deep)
