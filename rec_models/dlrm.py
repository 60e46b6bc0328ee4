"""DLRM."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from pslib.initializers import Initializer
from pslib.optimizers import Optimizer
from pslib.tables import PartSpec
from rec_models.layers import concat, embedding, inner_products, mlp, mlp_shapes, reshape, tower, tower_shapes
from rec_models.model import DenseVars, Model
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER
from rec_models.tape import Tape, Var

__all__ = ["DLRM"]


@dataclass(frozen=True, eq=False)
class DLRM(Model):
    """MLPs over dense fields and over the inner products of all vectors (Naumov et al., arXiv:1906.00091).

    Without dense fields there is no bottom MLP.

    Attributes
    ----------
    dim : int
        Floats of an embedding.
    bottom : tuple of int
        Units of each layer of the bottom MLP before its last, which has ``dim``.
    interaction : str
        What the top MLP reads beside what the bottom MLP gives: ``dot``, the inner products of all pairs of
        vectors, or ``cat``, the vectors themselves.
    hidden : tuple of int
        Units of each hidden layer.
    dropout : float
        Share of units dropped after each hidden layer.
    batch_norm : bool
        Whether the units of hidden layers are normalised.
    v_optimizer : Optimizer
    v_initializer : Initializer
    """

    dim: int = 10
    bottom: tuple[int, ...] = (64,)
    interaction: str = "dot"
    hidden: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.0
    batch_norm: bool = False
    v_optimizer: Optimizer = DEFAULT_OPTIMIZER
    v_initializer: Initializer = V_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``v``: the embedding of a key."""
        return (PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),)

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the bottom MLP, where there are dense fields, and of the top one."""
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
