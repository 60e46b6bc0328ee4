"""Fully connected layer: y = x W + b."""

from __future__ import annotations

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
    value = x.value @ weights.value
    value += bias.value

    def backward(gradient: Array) -> None:
        x.accumulate(gradient @ weights.value.T)
        weights.accumulate(x.value.T @ gradient)
        bias.accumulate(gradient.sum(axis=0))

    return tape.record(value, backward)
