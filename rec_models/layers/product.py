"""A matrix without a bias: y = x W."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["product"]


def product(tape: Tape, x: Var, weights: Var) -> Var:
    """Map every vector by one matrix.

    Parameters
    ----------
    x : (B, N) or (B, F, N)
    weights : (N, M)

    Returns
    -------
    (B, M) or (B, F, M)
        ``y = x W``; backward ``dx = dy W^T``, ``dW = x^T dy``, summed over all vectors.
    """
    shape = (*x.value.shape[:-1], weights.value.shape[1])
    value = np.matmul(x.value, weights.value, out=tape.empty(shape, x.value.dtype))

    def backward(gradient: Array) -> None:
        onward = np.matmul(gradient, weights.value.T, out=tape.empty(x.value.shape, x.value.dtype))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(_vectors(x.value), _vectors(gradient))

    return tape.record(value, backward)


def _vectors(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1]) if x.size else np.zeros((0, x.shape[-1]), x.dtype)
