"""Vectors of one length: y = c x / |x|."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["normalize"]


def normalize(tape: Tape, x: Var, length: float = 1.0) -> Var:
    """Give every vector the same length, so that products are cosines.

    Parameters
    ----------
    x : (B, N)
    length : float

    Returns
    -------
    (B, N)
        ``y = c x / |x|``, zeros for zeros; with ``e = x / |x|`` backward
        ``dx = c / |x| (dy - e <e, dy>)``.
    """
    norms = np.sqrt(np.einsum("bn,bn->b", x.value, x.value))[:, None]
    norms = np.where(norms > 0, norms, 1).astype(x.value.dtype)
    unit = x.value / norms
    scale = x.value.dtype.type(length)

    def backward(gradient: Array) -> None:
        along = np.einsum("bn,bn->b", unit, gradient)[:, None]
        x.accumulate((gradient - unit * along) * (scale / norms), owned=True)

    return tape.record(unit * scale, backward)
