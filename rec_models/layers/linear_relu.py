"""Fully connected layer with relu: y = max(x W + b, 0)."""

from __future__ import annotations

import numpy as np

from cython_ext.model.fused_layers import relu_gradient
from rec_models.products import times, times_transposed
from rec_models.tape import Array, Tape, Var

__all__ = ["linear_relu"]


def linear_relu(tape: Tape, x: Var, weights: Var, bias: Var) -> Var:
    """`linear`, then `relu`, without an array between them.

    Parameters
    ----------
    x : (B, N)
    weights : (N, M)
    bias : (M,)

    Returns
    -------
    (B, M)
        ``y = max(x W + b, 0)``; backward ``dz = dy where y > 0``, 0 at the kink, ``dx = dz W^T``,
        ``dW = x^T dz``, ``db = sum over the batch of dz``.

    Notes
    -----
    The same bits as the two layers one after the other.
    """
    shape = (x.value.shape[0], weights.value.shape[1])
    value = times(x.value, weights, tape.empty(shape, x.value.dtype), bias.value, relu=True)

    def backward(gradient: Array) -> None:
        dy = np.ascontiguousarray(gradient)
        dz = dy if output.owns_gradient and dy is gradient else tape.empty(shape, dy.dtype)
        bias_gradient = np.zeros_like(bias.value)
        relu_gradient(dy, value, dz, bias_gradient)
        onward = times_transposed(dz, weights, tape.empty(x.value.shape, dy.dtype))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(x.value, dz)
        bias.accumulate(bias_gradient, owned=True)

    output = tape.record(value, backward)
    return output
