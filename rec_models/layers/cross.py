"""Cross layer of DCN, with a vector of weights."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["cross"]


def cross(tape: Tape, x0: Var, x: Var, weights: Var, bias: Var) -> Var:
    """Raise the degree of a polynomial of the input by one.

    Parameters
    ----------
    x0, x : (B, N)
        The network's input and the layer's; the same Var in the first layer.
    weights, bias : (N,)

    Returns
    -------
    (B, N)
        ``y = x0 <x, w> + b + x``; backward ``dx0 = dy <x, w>``, ``dx = dy + s w`` with ``s = <dy, x0>``,
        ``dw = x^T s``, ``db = sum over the batch of dy``.

    Notes
    -----
    Wang et al., Deep & Cross Network for Ad Click Predictions, ADKDD 2017, arXiv:1708.05123, eq. 3.
    """
    heights = x.value @ weights.value
    value = np.multiply(x0.value, heights[:, None], out=tape.empty(x.value.shape, x.value.dtype))
    value += bias.value
    value += x.value

    def backward(gradient: Array) -> None:
        slopes = np.einsum("bn,bn->b", gradient, x0.value)
        onward = np.multiply(slopes[:, None], weights.value, out=tape.empty(x.value.shape, x.value.dtype))
        onward += gradient
        x0.accumulate(gradient * heights[:, None], owned=True)
        x.accumulate(onward, owned=True)
        weights.accumulate(x.value.T @ slopes, owned=True)
        bias.accumulate(gradient.sum(axis=0), owned=True)

    return tape.record(value, backward)
