"""Product-based neural network."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import concat, embedding, inner_products
from rec_models.model import DenseVars, MLPModel


@dataclass(frozen=True, eq=False, repr=False)
class PNN(MLPModel):
    """An MLP over embeddings and their inner products: IPNN (Qu et al., ICDM 2016, arXiv:1611.00144).

    The paper's first layer maps products (l_p) and embeddings (l_z) to the same units: one matrix over both.
    Dense fields are further inputs of it.
    """

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of the MLP."""
        pairs = self._fields * (self._fields - 1) // 2
        return self._mlp_shapes(self._mlp_width(self.dim) + pairs)

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 1 to 3: ``y = MLP([z, p, x_dense])`` with ``z = [e_1, ..., e_m]`` and ``p_ij = <e_i, e_j>``."""
        e = embedding(tape, rows, batch, self.schema)
        z, *x_dense = self._mlp_input(batch, e)
        a0 = concat(tape, z, inner_products(tape, e), *x_dense)
        return self._mlp(tape, a0, dense)
