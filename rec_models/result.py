"""Result of a training step."""

from __future__ import annotations

from dataclasses import dataclass

from rec_models.tape import Array

__all__ = ["StepResult"]


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """Loss, logits and gradients of one training step.

    Attributes
    ----------
    loss : float
        Mean log loss of the batch, before the step.
    logits : (B,)
    rows_gradient : (U, D)
        Gradient of the mean loss with respect to each distinct row; contiguous.
    dense_gradients : dict of name to array
        In the order of `Model.dense_shapes`.
    """

    loss: float
    logits: Array
    rows_gradient: Array
    dense_gradients: dict[str, Array]
