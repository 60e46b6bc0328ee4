"""Multi-gate mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslib.batch import Batch
from rec_models.engine.tape import Tape, Var
from rec_models.layers import concat, mixture, product, tower, tower_shapes
from rec_models.model import DenseVars, MultiTaskModel
from rec_models.options import LAYERS_MAX, size


@dataclass(frozen=True, eq=False, repr=False)
class MMoE(MultiTaskModel):
    """Shared experts, mixed by one gate per task (Ma et al., KDD 2018, 10.1145/3219819.3220007)."""

    experts: Annotated[int, size("Number of experts; 8 in the paper.", LAYERS_MAX)] = 8
    expert_hidden: Annotated[
        tuple[int, ...], size("Units of each layer of an expert; at least one layer.")
    ] = (64,)

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights and biases of each expert, and of each task's gate and MLP."""
        width, shapes = self._mlp_width(self.dim), dict[str, tuple[int, ...]]()
        for i in range(self.experts):
            shapes |= tower_shapes(f"expert.{i}", width, self.expert_hidden)
        for k in range(len(self.schema.labels)):
            shapes |= {f"gate.{k}.w": (width, self.experts)}
            shapes |= self._head_shapes(f"task.{k}", self.expert_hidden[-1])
        return shapes

    def forward(self, tape: Tape, batch: Batch, rows: Var, dense: DenseVars) -> Var:
        """Eq. 6 and 7: ``y_k = h_k(sum_i g_k(x)_i f_i(x))`` with ``g_k(x) = softmax(W_k x)``."""
        x = concat(tape, *self._mlp_input(batch, self._vectors(tape, batch, rows)))
        layers = len(self.expert_hidden)
        f = [tower(tape, x, dense, f"expert.{i}", layers, 0.0) for i in range(self.experts)]
        logits = []
        for k in range(len(self.schema.labels)):
            f_k = mixture(tape, product(tape, x, dense[f"gate.{k}.w"]), *f)
            logits.append(self._head(tape, f_k, dense, f"task.{k}"))
        return concat(tape, *logits)

    def _problems(self) -> list[str]:
        return [] if self.expert_hidden else ["expert_hidden: expected at least one layer, got none"]
