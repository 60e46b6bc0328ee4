"""Wide & Deep."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import add, concat, split
from rec_models.model import DenseVars, MLPModel, WeightedModel


@dataclass(frozen=True, eq=False, repr=False)
class WideDeep(MLPModel, WeightedModel):
    """A linear model and an MLP trained as one (Cheng et al., DLRS 2016, arXiv:1606.07792).

    The paper's crossed features (eq. 1) are columns like any other: make them in the data, name them sparse.
    """

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Wide weights of the dense fields, then the MLP, whose output bias is the model's."""
        return self._first_order_shapes() | self._mlp_shapes(self._mlp_width(self.dim))

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 3: ``y = w_wide [x, phi(x)] + w_deep a_L + b``."""
        w, v = split(tape, rows, (1, self.dim))
        wide = self._first_order(tape, batch, w, dense)
        a0 = concat(tape, *self._mlp_input(batch, self._vectors(tape, batch, v)))
        deep = self._mlp(tape, a0, dense)  # eq. 2 layer by layer; holds b
        return add(tape, *wide, deep)
