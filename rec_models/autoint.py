"""AutoInt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import (
    add,
    attention,
    concat,
    dense_vectors,
    embedding,
    linear,
    product,
    relu,
    reshape,
)
from rec_models.model import DenseVars, MLPModel
from rec_models.options import LAYERS_MAX, size

MATRICES = ("query", "key", "value")
"""Matrices of an interacting layer; it has a ``residual`` too if it changes the width of vectors."""


@dataclass(frozen=True, eq=False, repr=False)
class AutoInt(MLPModel):
    """Self-attention between the fields of an example (Song et al., CIKM 2019, arXiv:1810.11921).

    The input of a layer is added to its output, through a matrix only if their widths differ (eq. 8). With
    ``hidden`` an MLP runs beside the layers: the paper's AutoInt+ (section 5.5).
    """

    attention_layers: Annotated[int, size("Number of interacting layers.", LAYERS_MAX)] = 3
    attention_dim: Annotated[
        int, size("Floats of a field in such a layer, all heads together: a multiple of heads.")
    ] = 64
    heads: Annotated[int, size("Number of attention heads.")] = 2
    hidden: Annotated[tuple[int, ...], size("Units of each hidden layer of the MLP; empty: no MLP.")] = ()

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of dense fields' vectors, matrices of the layers, the logit, and the MLP if there is one."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.schema.dense:
            shapes |= {"dense.v": (len(self.schema.dense), self.dim)}
        width = self.dim
        for layer in range(self.attention_layers):
            matrices = MATRICES if width == self.attention_dim else (*MATRICES, "residual")
            shapes |= {f"attention.{layer}.{one}": (width, self.attention_dim) for one in matrices}
            width = self.attention_dim
        fields = self._fields + len(self.schema.dense)
        shapes |= {"out.w": (fields * width, 1), "out.b": (1,)}
        return shapes | (self._mlp_shapes(self._mlp_width(self.dim)) if self.hidden else {})

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 9: ``y = w [e_1, ..., e_M] + b`` after the interacting layers; AutoInt+ adds an MLP."""
        e = embedding(tape, rows, batch, self.schema)
        x = self._with_dense(tape, batch, e, dense)  # eq. 2 to 4
        for layer in range(self.attention_layers):
            query, key, value = (product(tape, x, dense[f"attention.{layer}.{one}"]) for one in MATRICES)
            mixed = attention(tape, query, key, value, self.heads)  # eq. 5 to 7
            projection = dense.get(f"attention.{layer}.residual")
            residual = x if projection is None else product(tape, x, projection)
            x = relu(tape, add(tape, mixed, residual))  # eq. 8
        y = reshape(tape, linear(tape, concat(tape, x), dense["out.w"], dense["out.b"]), ())
        if not self.hidden:
            return y
        a0 = concat(tape, *self._mlp_input(batch, e))
        return add(tape, y, self._mlp(tape, a0, dense))

    def _with_dense(self, tape: Tape, batch: Batch, e: Var, dense: DenseVars) -> Var:
        """Vectors of all fields, dense ones last."""
        if not self.schema.dense:
            return e
        of_dense = dense_vectors(tape, batch.dense, dense["dense.v"])
        fields = self._fields + len(self.schema.dense)
        return reshape(tape, concat(tape, e, of_dense), (fields, self.dim))

    def _problems(self) -> list[str]:
        if self.attention_dim % self.heads == 0:
            return []
        return [f"attention_dim: expected a multiple of heads = {self.heads}, got {self.attention_dim}"]
