"""One layer of a compressed interaction network."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["compress"]


def compress(tape: Tape, x: Var, x0: Var, weights: Var) -> Var:
    """Weighted sums of the products of all vectors of a layer with all fields, element by element.

    Parameters
    ----------
    x : (B, H, D)
        The vectors of the layer before; the fields themselves in the first layer.
    x0 : (B, F, D)
    weights : (H F, M)

    Returns
    -------
    (B, M, D)
        ``y_m = sum over h, f of W_hfm (x_h * x0_f)``; backward with ``g_hf = sum over m of W_hfm dy_m``:
        ``dx_h = sum over f of g_hf * x0_f``, ``dx0_f = sum over h of g_hf * x_h``,
        ``dW_hfm = sum over the batch of <dy_m, x_h * x0_f>``.

    Notes
    -----
    Lian et al., xDeepFM, KDD 2018, arXiv:1803.05170, eq. 6.
    """
    B, H, D = x.value.shape
    F, M = x0.value.shape[1], weights.value.shape[1]
    left = x.value.transpose(0, 2, 1)[:, :, :, None]  # (B, D, H, 1)
    right = x0.value.transpose(0, 2, 1)[:, :, None, :]  # (B, D, 1, F)
    products = np.multiply(left, right, out=tape.empty((B, D, H, F), x.value.dtype)).reshape(B * D, H * F)
    value = (products @ weights.value).reshape(B, D, M).transpose(0, 2, 1)

    def backward(gradient: Array) -> None:
        columns = np.ascontiguousarray(gradient.transpose(0, 2, 1)).reshape(B * D, M)
        inner = (columns @ weights.value.T).reshape(B, D, H, F)
        of_x = (inner @ right.swapaxes(2, 3))[:, :, :, 0]
        of_x0 = (left.swapaxes(2, 3) @ inner)[:, :, 0, :]
        x.accumulate(np.ascontiguousarray(of_x.transpose(0, 2, 1)), owned=True)
        x0.accumulate(np.ascontiguousarray(of_x0.transpose(0, 2, 1)), owned=True)
        weights.accumulate_product(products, columns)

    return tape.record(np.ascontiguousarray(value), backward)
