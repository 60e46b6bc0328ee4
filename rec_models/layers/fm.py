"""Second-order term of a factorization machine."""

from __future__ import annotations

import numpy as np

from cython_ext.model.fused_layers import fm_gradient, fm_pairs
from rec_models.tape import Array, Tape, Var

__all__ = ["fm"]


def fm(tape: Tape, vectors: Var) -> Var:
    """All pairs of fields in time linear in their number.

    Parameters
    ----------
    vectors : (B, F, D)
        ``v_i x_i`` of each field: the row of a sparse field, the pooled rows of a ragged one.

    Returns
    -------
    (B,)
        ``sum over i < j of <v_i, v_j> = 1/2 sum over d of ((sum_i v_id)^2 - sum_i v_id^2)``;
        backward ``dv_i = dy (s - v_i)`` with ``s = sum_i v_i``.

    Notes
    -----
    Rendle, Factorization Machines, ICDM 2010, pairwise term of eq. 1 by lemma 3.1. A ragged field counts as
    one vector: it meets the other fields, its own rows do not meet each other.
    """
    v = vectors.value
    total = tape.empty((v.shape[0], v.shape[2]), v.dtype)
    value = tape.empty((v.shape[0],), v.dtype)
    fm_pairs(v, total, value)

    def backward(gradient: Array) -> None:
        dy = np.ascontiguousarray(gradient)
        if vectors.owns_gradient and vectors.gradient is not None:  # an MLP's, which came first
            fm_gradient(v, total, dy, vectors.gradient)
            return
        from_field = tape.empty(v.shape, v.dtype)
        from_field[...] = 0
        fm_gradient(v, total, dy, from_field)
        vectors.accumulate(from_field, owned=True)

    return tape.record(value, backward)
