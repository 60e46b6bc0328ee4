"""Fully connected layer with relu: y = max(x W + b, 0)."""

from __future__ import annotations

import numpy as np

from cython_ext.fused_layers import add_bias_relu, relu_gradient
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
    The same bits as the two layers one after the other. At batch 4096 and 400 units bias and relu take 0.27
    ms instead of 0.87, their gradients 0.77 instead of 1.24 (``benchmarks/README.md``).
    """
    value = x.value @ weights.value
    add_bias_relu(value, bias.value)

    def backward(gradient: Array) -> None:
        products_gradient, bias_gradient = relu_gradient(np.ascontiguousarray(gradient), value)
        x.accumulate(products_gradient @ weights.value.T)
        weights.accumulate(x.value.T @ products_gradient)
        bias.accumulate(bias_gradient)

    return tape.record(value, backward)
