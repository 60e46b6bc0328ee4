"""Dice: a relu whose kink moves with the data."""

from __future__ import annotations

import numpy as np

from rec_models.layers.activation import sigmoid_of
from rec_models.layers.batch_norm import batch_norm
from rec_models.tape import Array, Tape, Var

__all__ = ["dice"]


def dice(tape: Tape, x: Var, alpha: Var, mean: Var, inv_std: Var) -> Var:
    """Let through what is above the mean of its unit, and the rest with a slope that is learnt.

    Parameters
    ----------
    x : (B, N)
    alpha : (N,)
    mean, inv_std : (N,)
        For predictions, as `batch_norm` has them.

    Returns
    -------
    (B, N)
        ``y = p x + (1 - p) alpha x`` with ``p = sigmoid(n)`` and ``n`` the normalised ``x``; backward
        ``dx = dy (p + (1 - p) alpha)`` and what comes through ``n``: ``dn = dy x (1 - alpha) p (1 - p)``;
        ``dalpha = sum over the batch of dy (1 - p) x``.

    Notes
    -----
    Zhou et al., Deep Interest Network, KDD 2018, arXiv:1706.06978, eq. 3; its epsilon of 1e-8 is batch norm's
    1e-5 here, as in PyTorch.
    """
    ones, zeros = Var(np.ones_like(alpha.value)), Var(np.zeros_like(alpha.value))
    n = batch_norm(tape, x, ones, zeros, mean, inv_std)
    p = sigmoid_of(n.value)
    slope = p + (1 - p) * alpha.value

    def backward(gradient: Array) -> None:
        through = gradient * x.value
        n.accumulate(through * (1 - alpha.value) * p * (1 - p), owned=True)
        x.accumulate(gradient * slope, owned=True)
        alpha.accumulate(np.einsum("bn,bn->n", through, 1 - p), owned=True)

    return tape.record(x.value * slope, backward)
