"""Fully connected layer: y = x W + b."""

from __future__ import annotations

from rec_models.products import times, times_transposed
from rec_models.tape import Array, Tape, Var

__all__ = ["linear"]


def linear(tape: Tape, x: Var, weights: Var, bias: Var) -> Var:
    """Map every example by one matrix.

    Parameters
    ----------
    x : (B, N)
    weights : (N, M)
    bias : (M,)

    Returns
    -------
    (B, M)
        ``y = x W + b``; backward ``dx = dy W^T``, ``dW = x^T dy``, ``db = sum over the batch of dy``.
    """
    shape = (x.value.shape[0], weights.value.shape[1])
    value = times(x.value, weights, tape.empty(shape, x.value.dtype), bias.value)

    def backward(gradient: Array) -> None:
        onward = times_transposed(gradient, weights, tape.empty(x.value.shape, x.value.dtype))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(x.value, gradient)
        bias.accumulate(gradient.sum(axis=0), owned=True)

    return tape.record(value, backward)
