"""Cross layer of DCN-v2, with a matrix of weights."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["cross_matrix"]


def cross_matrix(tape: Tape, x0: Var, x: Var, weights: Var, bias: Var) -> Var:
    """Raise the degree of a polynomial of the input by one, each feature with weights of its own.

    Parameters
    ----------
    x0, x : (B, N)
        The network's input and the layer's; the same Var in the first layer.
    weights : (N, N)
    bias : (N,)

    Returns
    -------
    (B, N)
        ``y = x0 * u + x`` with ``u = x W + b``; backward ``dx0 = dy * u``, ``du = dy * x0``,
        ``dx = dy + du W^T``, ``dW = x^T du``, ``db = sum over the batch of du``.

    Notes
    -----
    Wang et al., DCN V2, WWW 2021, arXiv:2008.13535, eq. 1.
    """
    u = np.matmul(x.value, weights.value, out=tape.empty(x.value.shape, x.value.dtype))
    u += bias.value
    value = np.multiply(x0.value, u, out=tape.empty(x.value.shape, x.value.dtype))
    value += x.value

    def backward(gradient: Array) -> None:
        du = np.multiply(gradient, x0.value, out=tape.empty(x.value.shape, x.value.dtype))
        onward = np.matmul(du, weights.value.T, out=tape.empty(x.value.shape, x.value.dtype))
        onward += gradient
        x0.accumulate(gradient * u, owned=True)
        x.accumulate(onward, owned=True)
        weights.accumulate_product(x.value, du)
        bias.accumulate(du.sum(axis=0), owned=True)

    return tape.record(value, backward)
