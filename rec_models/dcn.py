"""Deep & Cross Network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import concat, cross, linear, reshape, tower, tower_shapes
from rec_models.model import DenseVars, MLPModel
from rec_models.options import LAYERS_MAX, size


@dataclass(frozen=True, eq=False, repr=False)
class DCN(MLPModel):
    """A cross network beside an MLP on the same input (Wang et al., ADKDD 2017, arXiv:1708.05123)."""

    cross_layers: Annotated[
        int,
        size(
            "Number of cross layers; the first adds pairs of inputs, the second triples, and so on.",
            LAYERS_MAX,
        ),
    ] = 3

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the cross layers, of the MLP, and of the logit."""
        width = self._mlp_width(self.dim)
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(self.cross_layers):
            shapes |= {f"cross.{layer}.w": (width,), f"cross.{layer}.b": (width,)}
        shapes |= tower_shapes("deep", width, self.hidden, self.batch_norm)
        joined = width + [width, *self.hidden][-1]
        return shapes | {"out.w": (joined, 1), "out.b": (1,)}

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 5: ``y = w [x_L, h_L] + b``."""
        x0 = concat(tape, *self._mlp_input(batch, self._vectors(tape, batch, rows)))  # eq. 2
        x = x0
        for layer in range(self.cross_layers):
            x = cross(tape, x0, x, dense[f"cross.{layer}.w"], dense[f"cross.{layer}.b"])  # eq. 3
        h = tower(tape, x0, dense, "deep", len(self.hidden), self.dropout)  # eq. 4
        joined = concat(tape, x, h)
        return reshape(tape, linear(tape, joined, dense["out.w"], dense["out.b"]), ())
