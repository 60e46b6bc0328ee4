"""Sum each vector to one number."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["sum_vectors"]


def sum_vectors(tape: Tape, vectors: Var) -> Var:
    """Pool the elements of each vector.

    Parameters
    ----------
    vectors : (B, H, D)

    Returns
    -------
    (B, H)
        ``p_h = sum over d of v_hd``; backward ``dv_hd = dp_h``.

    Notes
    -----
    Lian et al., xDeepFM, KDD 2018, arXiv:1803.05170, eq. 7.
    """

    def backward(gradient: Array) -> None:
        vectors.accumulate(np.broadcast_to(gradient[:, :, None], vectors.value.shape))

    return tape.record(vectors.value.sum(axis=2), backward)
