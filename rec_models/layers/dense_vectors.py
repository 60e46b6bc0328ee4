"""One vector a dense field."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["dense_vectors"]


def dense_vectors(tape: Tape, x: Array, weights: Var) -> Var:
    """Give every dense field a vector, as long as its value.

    Parameters
    ----------
    x : (B, N)
        Data, not a Var: no gradient flows into it.
    weights : (N, D)

    Returns
    -------
    (B, N, D)
        ``e_n = x_n v_n``; backward ``dv_n = sum over the batch of x_n de_n``.

    Notes
    -----
    Song et al., AutoInt, CIKM 2019, arXiv:1810.11921, eq. 4.
    """
    numbers = x.astype(weights.value.dtype, copy=False)

    def backward(gradient: Array) -> None:
        weights.accumulate(np.einsum("bn,bnd->nd", numbers, gradient), owned=True)

    return tape.record(numbers[:, :, None] * weights.value, backward)
