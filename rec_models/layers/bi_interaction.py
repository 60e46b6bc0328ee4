"""Bi-interaction pooling: the pairs of a factorization machine, not yet summed."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["bi_interaction"]


def bi_interaction(tape: Tape, vectors: Var) -> Var:
    """Sum of the element-wise products of all pairs of fields.

    Parameters
    ----------
    vectors : (B, F, D)

    Returns
    -------
    (B, D)
        ``sum over i < j of v_i * v_j = 1/2 ((sum_i v_i)^2 - sum_i v_i^2)``; backward ``dv_i = dy (s - v_i)``
        with ``s = sum_i v_i``.

    Notes
    -----
    He and Chua, Neural Factorization Machines, SIGIR 2017, arXiv:1708.05027, eq. 3 and 4.
    """
    v = vectors.value
    total = v.sum(axis=1)

    def backward(gradient: Array) -> None:
        onward = np.subtract(total[:, None], v, out=tape.empty(v.shape, v.dtype))
        onward *= gradient[:, None]
        vectors.accumulate(onward, owned=True)

    return tape.record((total * total - np.einsum("bfd,bfd->bd", v, v)) * v.dtype.type(0.5), backward)
