"""Weigh the fields of an example by how much they matter in it."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["squeeze_excite"]


def squeeze_excite(tape: Tape, vectors: Var, squeeze: Var, excite: Var) -> Var:
    """Scale each field by a weight that depends on all fields.

    Parameters
    ----------
    vectors : (B, F, D)
    squeeze : (F, R)
    excite : (R, F)

    Returns
    -------
    (B, F, D)
        ``z_f = mean over d of v_fd``, ``h = relu(z W_1)``, ``a = relu(h W_2)``, ``y_f = a_f v_f``; backward
        ``da_f = <dy_f, v_f>`` where ``a_f > 0``, ``dh = da W_2^T`` where ``h > 0``, ``dz = dh W_1^T``,
        ``dv_f = a_f dy_f + dz_f / D``, ``dW_2 = h^T da``, ``dW_1 = z^T dh``.

    Notes
    -----
    Huang, Zhang and Zhang, FiBiNET, RecSys 2019, arXiv:1905.09433, eq. 2 to 4.
    """
    v = vectors.value
    z = v.mean(axis=2)
    h = np.maximum(z @ squeeze.value, 0)
    a = np.maximum(h @ excite.value, 0)

    def backward(gradient: Array) -> None:
        da = np.einsum("bfd,bfd->bf", gradient, v) * (a > 0)
        dh = (da @ excite.value.T) * (h > 0)
        onward = np.multiply(gradient, a[:, :, None], out=tape.empty(v.shape, v.dtype))
        onward += ((dh @ squeeze.value.T) / v.dtype.type(v.shape[2]))[:, :, None]
        vectors.accumulate(onward, owned=True)
        excite.accumulate_product(h, da)
        squeeze.accumulate_product(z, dh)

    return tape.record(v * a[:, :, None], backward)
