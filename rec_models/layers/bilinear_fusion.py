"""Fuse two vectors to one number, head by head."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["bilinear_fusion"]


def bilinear_fusion(tape: Tape, x: Var, y: Var, weights: Var) -> Var:
    """Sum of the products of all pairs of units of two streams that belong to the same head.

    Parameters
    ----------
    x : (B, H M)
    y : (B, H N)
    weights : (H, M, N)

    Returns
    -------
    (B,)
        ``sum over heads h of x_h^T W_h y_h``; backward ``dx_h = dz W_h y_h``, ``dy_h = dz x_h^T W_h``,
        ``dW_h = sum over the batch of dz x_h y_h^T``.

    Notes
    -----
    Mao et al., FinalMLP, AAAI 2023, arXiv:2304.00902, eq. 12 and 13, the quadratic terms.
    """
    H, M, N = weights.value.shape
    B = x.value.shape[0]
    x_h = x.value.reshape(B, H, M).transpose(1, 0, 2)
    y_h = y.value.reshape(B, H, N).transpose(1, 0, 2)
    u = x_h @ weights.value  # (H, B, N)

    def backward(gradient: Array) -> None:
        dy = (u * gradient[:, None]).transpose(1, 0, 2)
        scaled = y_h * gradient[:, None]
        dx = (scaled @ weights.value.swapaxes(1, 2)).transpose(1, 0, 2)
        x.accumulate(dx.reshape(B, H * M), owned=True)
        y.accumulate(dy.reshape(B, H * N), owned=True)
        weights.accumulate(x_h.swapaxes(1, 2) @ scaled, owned=True)

    return tape.record(np.einsum("hbn,hbn->b", u, y_h), backward)
