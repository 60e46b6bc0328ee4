"""DLRM."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.embedded import EmbeddedModel
from rec_models.layers import concat, embedding, inner_products, mlp, mlp_shapes, reshape, tower, tower_shapes
from rec_models.model import DenseVars
from rec_models.tape import Tape, Var

__all__ = ["DLRM"]


@dataclass(frozen=True, eq=False)
class DLRM(EmbeddedModel):
    """MLPs over dense fields and over the inner products of all vectors (Naumov et al., arXiv:1906.00091).

    Without dense fields there is no bottom MLP.

    Attributes
    ----------
    bottom : tuple of int
        Units of each layer of the bottom MLP before its last, which has ``dim``.
    interaction : str
        Input of the top MLP beside the bottom MLP's output: ``dot``, inner products of all pairs of vectors,
        or ``cat``, the vectors themselves.
    hidden : tuple of int
        Units of each hidden layer.
    dropout : float
        Share of units dropped after each hidden layer.
    batch_norm : bool
        Whether the units of hidden layers are normalised.
    """

    bottom: tuple[int, ...] = (64,)
    interaction: str = "dot"
    hidden: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.0
    batch_norm: bool = False

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
        return shapes | mlp_shapes(inputs, self.hidden, self.batch_norm)

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
        return mlp(tape, concat(tape, *z, interacted), dense, len(self.hidden), self.dropout)

    def _problems(self) -> list[str]:
        if self.interaction != "dot" or self.schema.dense or self._fields > 1:
            return []
        return ["interaction: expected cat, or a second field: one field without dense ones has no pairs"]
