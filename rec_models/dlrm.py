"""DLRM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from pslib.settings import Setting
from rec_models.engine.tape import Tape, Var
from rec_models.layers import concat, embedding, inner_products, reshape, tower, tower_shapes
from rec_models.model import DenseVars, MLPModel
from rec_models.options import size


@dataclass(frozen=True, eq=False, repr=False)
class DLRM(MLPModel):
    """MLPs over dense fields and over the inner products of all vectors (Naumov et al., arXiv:1906.00091).

    Without dense fields there is no bottom MLP.
    """

    bottom: Annotated[
        tuple[int, ...], size("Units of each layer of the bottom MLP before its last, which has dim.")
    ] = (64,)
    interaction: Annotated[
        str,
        Setting(
            "Input of the top MLP beside the bottom MLP's output: dot, inner products of all pairs "
            "of vectors; or cat, the vectors themselves.",
            choices=("dot", "cat"),
        ),
    ] = "dot"

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the bottom MLP, if there are dense fields, and of the top MLP."""
        bottom = 1 if self.schema.dense else 0
        vectors = self._fields + bottom
        inputs = vectors * (vectors - 1) // 2 if self.interaction == "dot" else self._fields * self.dim
        inputs += bottom * self.dim
        shapes: dict[str, tuple[int, ...]] = {}
        if self.schema.dense:
            layers = (*self.bottom, self.dim)
            shapes |= tower_shapes("bottom", len(self.schema.dense), layers, self.batch_norm)
        return shapes | self._mlp_shapes(inputs)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Section 2.1: ``y = MLP_top([z, <e_i, e_j>])`` with ``z = MLP_bottom(x_dense)``."""
        e = embedding(tape, rows, batch, self.schema)
        z: tuple[Var, ...] = ()
        if self.schema.dense:
            x_dense = Var(batch.dense.astype(rows.value.dtype, copy=False))
            z = (tower(tape, x_dense, dense, "bottom", len(self.bottom) + 1, self.dropout),)
        interacted = e
        if self.interaction == "dot":
            vectors = reshape(tape, concat(tape, *z, e), (self._fields + len(z), self.dim))
            interacted = inner_products(tape, vectors)
        return self._mlp(tape, concat(tape, *z, interacted), dense)

    def _problems(self) -> list[str]:
        if self.interaction != "dot" or self.schema.dense or self._fields > 1:
            return []
        return ["interaction: expected cat, or a second field: one field without dense ones has no pairs"]
