"""Product-based neural network."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.embedded import EmbeddedModel
from rec_models.layers import concat, embedding, inner_products, mlp, mlp_shapes
from rec_models.model import DenseVars
from rec_models.tape import Tape, Var

__all__ = ["PNN"]


@dataclass(frozen=True, eq=False)
class PNN(EmbeddedModel):
    """An MLP over embeddings and their inner products: IPNN (Qu et al., ICDM 2016, arXiv:1611.00144).

    The paper's first layer maps products (l_p) and embeddings (l_z) to the same units: one matrix over both.
    Dense fields are further inputs of it.

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
        """Weights and biases of the MLP."""
        pairs = self._fields * (self._fields - 1) // 2
        return mlp_shapes(self._mlp_width(self.dim) + pairs, self.hidden, self.batch_norm)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 1 to 3: ``y = MLP([z, p, x_dense])`` with ``z = [e_1, ..., e_m]`` and ``p_ij = <e_i, e_j>``."""
        e = embedding(tape, rows, batch, self.schema)
        z, *x_dense = self._mlp_input(batch, e)
        a0 = concat(tape, z, inner_products(tape, e), *x_dense)
        return mlp(tape, a0, dense, len(self.hidden), self.dropout)
