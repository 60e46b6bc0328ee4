"""Inner products of all pairs of fields."""

from __future__ import annotations

import numpy as np

from rec_models.pairs import pairs_of
from rec_models.tape import Array, Tape, Var

__all__ = ["inner_products"]


def inner_products(tape: Tape, vectors: Var) -> Var:
    """One number for each pair of fields.

    Parameters
    ----------
    vectors : (B, F, D)

    Returns
    -------
    (B, F (F - 1) / 2)
        ``p_ij = <v_i, v_j>`` for ``i < j``, in the order of `pairs_of`; backward
        ``dv_i = sum over j of dp_ij v_j``.

    Notes
    -----
    Qu et al., Product-based Neural Networks, ICDM 2016, arXiv:1611.00144, section III-B, with one number a
    pair; Naumov et al., DLRM, arXiv:1906.00091, section 2.1.3.
    """
    v = vectors.value
    left, right = pairs_of(v.shape[1])
    value = np.matmul(v, v.transpose(0, 2, 1))[:, left, right]

    def backward(gradient: Array) -> None:
        square = np.zeros((v.shape[0], v.shape[1], v.shape[1]), v.dtype)
        square[:, left, right] = gradient
        square[:, right, left] = gradient
        vectors.accumulate(np.matmul(square, v, out=tape.empty(v.shape, v.dtype)), owned=True)

    return tape.record(value, backward)
