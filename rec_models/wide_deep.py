"""Wide & Deep."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.embedded import WeightedModel
from rec_models.layers import add, concat, mlp, mlp_shapes, split
from rec_models.model import DenseVars
from rec_models.tape import Tape, Var

__all__ = ["WideDeep"]


@dataclass(frozen=True, eq=False)
class WideDeep(WeightedModel):
    """A linear model and an MLP trained as one (Cheng et al., DLRS 2016, arXiv:1606.07792).

    The paper's crossed features (eq. 1) are columns like any other: make them in the data, name them sparse.

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
