"""A matrix without a bias: y = x W."""

from __future__ import annotations

import numpy as np

from rec_models.products import times, times_transposed
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
    value = tape.empty((*x.value.shape[:-1], weights.value.shape[1]), x.value.dtype)
    times(_vectors(x.value), weights, _vectors(value))  # one product: NumPy has one for each example

    def backward(gradient: Array) -> None:
        onward = tape.empty(x.value.shape, x.value.dtype)
        times_transposed(_vectors(gradient), weights, _vectors(onward))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(_vectors(x.value), _vectors(gradient))

    return tape.record(value, backward)


def _vectors(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1]) if x.size else np.zeros((0, x.shape[-1]), x.dtype)
