"""One number for each pair of vectors: y_n = <a_n, b_n>."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["row_dot"]


def row_dot(tape: Tape, a: Var, b: Var) -> Var:
    """Inner products, row by row.

    Parameters
    ----------
    a, b : (N, D)

    Returns
    -------
    (N,)
        ``y_n = <a_n, b_n>``; backward ``da_n = dy_n b_n``, ``db_n = dy_n a_n``.
    """

    def backward(gradient: Array) -> None:
        a.accumulate(gradient[:, None] * b.value, owned=True)
        b.accumulate(gradient[:, None] * a.value, owned=True)

    return tape.record(np.einsum("nd,nd->n", a.value, b.value), backward)
