"""Layer normalisation."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["layer_norm"]

EPSILON = 1e-5
"""Added to a variance before its root, as PyTorch does."""


def layer_norm(tape: Tape, x: Var, scale: Var, shift: Var) -> Var:
    """Give every vector mean 0 and deviation 1 over its units, then each unit a scale and a shift of its own.

    Parameters
    ----------
    x : (B, N)
    scale, shift : (N,)

    Returns
    -------
    (B, N)
        ``y = scale * n + shift`` with ``n = (x - m) i``, ``m`` the mean of a row and ``i`` one over its
        deviation. Backward ``dshift = sum dy``, ``dscale = sum dy n``, and with ``g = scale dy`` row by row
        ``dx = i (g - mean of g - n mean of (g n))``.

    Notes
    -----
    Ba, Kiros and Hinton, arXiv:1607.06450, eq. 4. An example's vectors depend on no other example: it means
    the same whoever computes the step, and in a prediction.
    """
    units = x.value.dtype.type(max(1, x.value.shape[1]))
    n = np.subtract(
        x.value, x.value.sum(axis=1, keepdims=True) / units, out=tape.empty(x.value.shape, x.value.dtype)
    )
    variance = np.einsum("bn,bn->b", n, n) / units
    inverse = (1 / np.sqrt(variance + x.value.dtype.type(EPSILON)))[:, None]
    n *= inverse
    value = np.multiply(n, scale.value, out=tape.empty(x.value.shape, x.value.dtype))
    value += shift.value

    def backward(gradient: Array) -> None:
        scale.accumulate(np.einsum("bn,bn->n", gradient, n), owned=True)
        shift.accumulate(gradient.sum(axis=0), owned=True)
        onward = gradient * scale.value
        along = np.einsum("bn,bn->b", onward, n)[:, None] / units
        onward -= onward.sum(axis=1, keepdims=True) / units
        onward -= n * along
        onward *= inverse
        x.accumulate(onward, owned=True)

    return tape.record(value, backward)
