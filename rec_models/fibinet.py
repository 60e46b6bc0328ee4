"""FiBiNET."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from pslib.settings import Setting
from rec_models.engine.tape import Tape, Var
from rec_models.layers import add, bilinear_pairs, concat, embedding, split, squeeze_excite
from rec_models.layers.interactions import matrices_of
from rec_models.model import DenseVars, MLPModel, WeightedModel
from rec_models.options import size


@dataclass(frozen=True, eq=False, repr=False)
class FiBiNET(MLPModel, WeightedModel):
    """Squeeze-excitation weights of fields, and bilinear pairs (Huang et al., arXiv:1905.09433).

    Pairs of weighted and of plain fields share their matrices.
    """

    reduction: Annotated[
        int, size("Reduction factor of the squeezed fields; at least one number remains.")
    ] = 3
    bilinear: Annotated[
        str,
        Setting(
            "One matrix for all pairs, for each left field, or for each interaction.",
            choices=("all", "each", "interaction"),
        ),
    ] = "interaction"

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of first-order weights of dense fields, squeeze, excitation, bilinear matrices and MLP."""
        fields = self._fields
        squeezed = max(1, fields // self.reduction)
        matrices = int(matrices_of(self.bilinear, fields).max(initial=-1)) + 1
        shapes = self._first_order_shapes()
        shapes |= {"squeeze.w": (fields, squeezed), "excite.w": (squeezed, fields)}
        shapes |= {"bilinear.w": (matrices, self.dim, self.dim)}
        inputs = fields * (fields - 1) * self.dim + len(self.schema.dense)
        return shapes | self._mlp_shapes(inputs)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 9: ``y = w_0 + <w, x> + MLP([p, q, x_dense])``."""
        w, e = split(tape, rows, (1, self.dim))
        e = embedding(tape, e, batch, self.schema)
        v = squeeze_excite(tape, e, dense["squeeze.w"], dense["excite.w"])  # eq. 2 to 4
        p, q = (bilinear_pairs(tape, one, dense["bilinear.w"], self.bilinear) for one in (e, v))  # eq. 5
        p, *x_dense = self._mlp_input(batch, p)
        deep = self._mlp(tape, concat(tape, p, q, *x_dense), dense)  # eq. 6 to 8
        return add(tape, *self._first_order(tape, batch, w, dense), deep)
