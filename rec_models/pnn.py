"""Product-based neural network."""

from __future__ import annotations

from dataclasses import dataclass

from pslib.batch import Batch
from pslib.initializers import Initializer
from pslib.optimizers import Optimizer
from pslib.tables import PartSpec
from rec_models.layers import concat, embedding, inner_products, mlp, mlp_shapes
from rec_models.model import DenseVars, Model
from rec_models.options import DEFAULT_OPTIMIZER, V_INITIALIZER
from rec_models.tape import Tape, Var

__all__ = ["PNN"]


@dataclass(frozen=True, eq=False)
class PNN(Model):
    """An MLP over embeddings and their inner products: IPNN (Qu et al., ICDM 2016, arXiv:1611.00144).

    The paper's first layer maps products (l_p) and embeddings (l_z) to the same units: one matrix over both.
    Dense fields are given to it as they are.

    Attributes
    ----------
    dim : int
        Floats of an embedding.
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
    hidden: tuple[int, ...] = (400, 400, 400)
    dropout: float = 0.0
    batch_norm: bool = False
    v_optimizer: Optimizer = DEFAULT_OPTIMIZER
    v_initializer: Initializer = V_INITIALIZER

    def parts(self) -> tuple[PartSpec, ...]:
        """``v``: the embedding of a key."""
        return (PartSpec("v", self.dim, self.v_optimizer, self.v_initializer),)

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
