"""The last two layers of an MLP: y = max(x W + b, 0) w + c, one number an example."""

from __future__ import annotations

import numpy as np

from cython_ext.model.fused_layers import head_gradient
from rec_models.products import times, times_transposed
from rec_models.tape import Array, Tape, Var

__all__ = ["relu_head"]


def relu_head(tape: Tape, x: Var, weights: Var, bias: Var, out_weights: Var, out_bias: Var) -> Var:
    """`linear_relu`, then `linear` to one unit; going backward both are one pass over the hidden units.

    Parameters
    ----------
    x : (B, N)
    weights : (N, M)
    bias : (M,)
    out_weights : (M, 1)
    out_bias : (1,)

    Returns
    -------
    (B,)
        ``a = max(x W + b, 0)``, ``y = a w + c``; backward ``dz = dy w^T where a > 0``, ``dw = a^T dy``,
        ``dc = sum of dy``, ``db = sum of dz``, ``dW = x^T dz``, ``dx = dz W^T``.
    """
    shape = (x.value.shape[0], weights.value.shape[1])
    a = times(x.value, weights, tape.empty(shape, x.value.dtype), bias.value, relu=True)
    value = a @ out_weights.value[:, 0]
    value += out_bias.value

    def backward(gradient: Array) -> None:
        dz, db, dw = tape.empty(shape, a.dtype), np.zeros_like(bias.value), np.zeros_like(out_weights.value)
        dy = np.ascontiguousarray(gradient)
        head_gradient(dy, a, np.ascontiguousarray(out_weights.value[:, 0]), dz, db, dw[:, 0])
        onward = times_transposed(dz, weights, tape.empty(x.value.shape, a.dtype))
        x.accumulate(onward, owned=True)
        weights.accumulate_product(x.value, dz)
        bias.accumulate(db, owned=True)
        out_weights.accumulate(dw, owned=True)
        out_bias.accumulate(gradient.sum(keepdims=True), owned=True)

    return tape.record(value, backward)
