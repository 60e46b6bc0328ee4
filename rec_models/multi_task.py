"""Base of models of several tasks: a logit for each label of the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rec_models.embedded import EmbeddedModel
from rec_models.layers import linear, tower, tower_shapes
from rec_models.model import DenseVars
from rec_models.tape import Tape, Var

__all__ = ["MultiTaskModel"]

TASKS_MAX = 64
"""Limit of tasks; published models have two to ten."""


@dataclass(frozen=True, eq=False)
class MultiTaskModel(EmbeddedModel):
    """Base of models that predict several labels of an example: the schema's ``label`` and ``more_labels``.

    `forward` gives a logit for each, (B, T) in the schema's order; the loss is the sum of their log losses.

    Attributes
    ----------
    hidden : tuple of int
        Units of each hidden layer of a task's own MLP.
    dropout : float
        Share of units dropped after each hidden layer of it.
    batch_norm : bool
        Whether the units of its hidden layers are normalised.
    """

    tasks: ClassVar[tuple[int, int]] = (2, TASKS_MAX)

    hidden: tuple[int, ...] = (200, 80)
    dropout: float = 0.0
    batch_norm: bool = False

    def _head_shapes(self, name: str, inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a task's MLP, which ends in its logit."""
        units = [inputs, *self.hidden][-1]
        shapes = tower_shapes(name, inputs, self.hidden, self.batch_norm)
        return shapes | {f"{name}.out.w": (units, 1), f"{name}.out.b": (1,)}

    def _head(self, tape: Tape, x: Var, dense: DenseVars, name: str) -> Var:
        """Compute the logit of a task, (B, 1)."""
        a = tower(tape, x, dense, name, len(self.hidden), self.dropout)
        return linear(tape, a, dense[f"{name}.out.w"], dense[f"{name}.out.b"])
