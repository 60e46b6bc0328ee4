"""xDeepFM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import add, compress, concat, product, reshape, split, sum_vectors
from rec_models.model import DenseVars, MLPModel, WeightedModel
from rec_models.options import size


@dataclass(frozen=True, eq=False, repr=False)
class XDeepFM(MLPModel, WeightedModel):
    """A compressed interaction network, an MLP and a linear term (Lian et al., KDD 2018, arXiv:1803.05170).

    Dense fields enter the linear term and the MLP; the network is of sparse and ragged fields. Its layers are
    as the paper found best, and each gives all of its vectors both to the next layer and to the sum.
    """

    cin: Annotated[tuple[int, ...], size("Vectors of each layer of the compressed interaction network.")] = (
        64,
    )

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """First-order weights of dense fields, the network, and the MLP, whose output bias is the model's."""
        shapes = self._first_order_shapes()
        before = self._fields
        for layer, vectors in enumerate(self.cin if self._fields else ()):
            shapes |= {f"cin.{layer}.w": (before * self._fields, vectors)}
            before = vectors
        if self._fields:
            shapes |= {"cin.out.w": (sum(self.cin), 1)}
        return shapes | self._mlp_shapes(self._mlp_width(self.dim))

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 10: ``y = w_linear x + w_dnn a_L + w_cin p + b``."""
        w, v = split(tape, rows, (1, self.dim))
        e = self._vectors(tape, batch, v)
        deep = self._mlp(tape, concat(tape, *self._mlp_input(batch, e)), dense)
        linear_term = self._first_order(tape, batch, w, dense)
        if not self._fields:
            return add(tape, *linear_term, deep)
        pooled, x = [], e
        for layer in range(len(self.cin)):
            x = compress(tape, x, e, dense[f"cin.{layer}.w"])  # eq. 6
            pooled.append(sum_vectors(tape, x))  # eq. 7
        p = concat(tape, *pooled)  # eq. 8 without the sigmoid
        return add(tape, *linear_term, deep, reshape(tape, product(tape, p, dense["cin.out.w"]), ()))

    def _problems(self) -> list[str]:
        return [] if self.cin else ["cin: expected at least one layer, got none"]
