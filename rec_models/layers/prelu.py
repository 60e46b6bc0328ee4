"""Parametric relu."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["prelu"]


def prelu(tape: Tape, x: Var, alpha: Var) -> Var:
    """Let negative values through with a slope that is learnt.

    Parameters
    ----------
    x : (B, N)
    alpha : (N,)

    Returns
    -------
    (B, N)
        ``y = max(x, 0) + alpha min(x, 0)``; backward ``dx = dy`` where ``x > 0``, else ``alpha dy``;
        ``dalpha = sum over the batch of dy min(x, 0)``.

    Notes
    -----
    He et al., arXiv:1502.01852, eq. 1; equation 2 of Deep Interest Network, arXiv:1706.06978.
    """
    below = np.minimum(x.value, 0)

    def backward(gradient: Array) -> None:
        x.accumulate(np.where(x.value > 0, gradient, gradient * alpha.value), owned=True)
        alpha.accumulate(np.einsum("bn,bn->n", gradient, below), owned=True)

    return tape.record(np.maximum(x.value, 0) + alpha.value * below, backward)
