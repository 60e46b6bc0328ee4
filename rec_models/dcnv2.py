"""Deep & Cross Network, version 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from pslib.settings import Setting
from rec_models.engine.tape import Tape, Var
from rec_models.layers import concat, cross_matrix, linear, reshape, tower, tower_shapes
from rec_models.model import DenseVars, MLPModel
from rec_models.options import LAYERS_MAX, size


@dataclass(frozen=True, eq=False, repr=False)
class DCNv2(MLPModel):
    """A cross network of matrices; an MLP beside or behind it (Wang et al., WWW 2021, arXiv:2008.13535)."""

    cross_layers: Annotated[
        int,
        size(
            "Number of cross layers; the first adds pairs of inputs, the second triples, and so on.",
            LAYERS_MAX,
        ),
    ] = 3
    stacked: Annotated[
        bool, Setting("Feed the MLP with the output of the cross network instead of the input.")
    ] = False

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the cross layers, of the MLP, and of the logit."""
        width = self._mlp_width(self.dim)
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(self.cross_layers):
            shapes |= {f"cross.{layer}.w": (width, width), f"cross.{layer}.b": (width,)}
        shapes |= tower_shapes("deep", width, self.hidden, self.batch_norm)
        deep = [width, *self.hidden][-1]
        return shapes | {"out.w": (deep if self.stacked else width + deep, 1), "out.b": (1,)}

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Figure 1: ``y = w [x_L, h_L] + b`` in parallel, ``y = w h_L + b`` stacked."""
        x0 = concat(tape, *self._mlp_input(batch, self._vectors(tape, batch, rows)))
        x = x0
        for layer in range(self.cross_layers):
            x = cross_matrix(tape, x0, x, dense[f"cross.{layer}.w"], dense[f"cross.{layer}.b"])  # eq. 1
        h = tower(tape, x if self.stacked else x0, dense, "deep", len(self.hidden), self.dropout)  # eq. 2
        last = h if self.stacked else concat(tape, x, h)
        return reshape(tape, linear(tape, last, dense["out.w"], dense["out.b"]), ())
