"""Products of all pairs of fields with a matrix between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rec_models.pairs import pairs_of, summed_by_field
from rec_models.tape import Array, Tape, Var

__all__ = ["BILINEAR", "bilinear_pairs", "matrices_of"]

BILINEAR = ("all", "each", "interaction")
"""One matrix for all pairs, one for each left field, one for each pair."""


def matrices_of(kind: str, fields: int) -> NDArray[np.intp]:
    """(P,) number of the matrix of each pair; `kind` is one of `BILINEAR`."""
    left, _ = pairs_of(fields)
    return {"all": np.zeros_like(left), "each": left, "interaction": np.arange(left.size)}[kind]


def bilinear_pairs(tape: Tape, vectors: Var, weights: Var, kind: str) -> Var:
    """One vector for each pair of fields.

    Parameters
    ----------
    vectors : (B, F, D)
    weights : (K, D, D)
        K matrices, as many as `matrices_of` names.
    kind : str
        One of `BILINEAR`.

    Returns
    -------
    (B, P, D)
        ``p_ij = u * v_j`` with ``u = v_i W_ij`` for ``i < j``, in the order of `pairs_of`; backward
        ``dv_j += dp * u``, ``du = dp * v_j``, ``dv_i += du W_ij^T``, ``dW_ij += v_i^T du``.

    Notes
    -----
    Huang, Zhang and Zhang, FiBiNET, RecSys 2019, arXiv:1905.09433, section 3.4.
    """
    v = vectors.value
    fields = v.shape[1]
    left, right = pairs_of(fields)
    matrices = matrices_of(kind, fields)
    by_field = np.ascontiguousarray(v.transpose(1, 0, 2))  # (F, B, D)
    v_i, v_j, between = by_field[left], by_field[right], weights.value[matrices]
    u = v_i @ between

    def backward(gradient: Array) -> None:
        dp = gradient.transpose(1, 0, 2)
        du = dp * v_j
        onward = summed_by_field(du @ between.swapaxes(1, 2), left, fields)
        onward += summed_by_field(dp * u, right, fields)
        vectors.accumulate(onward, owned=True)
        by_matrix = np.zeros_like(weights.value)
        np.add.at(by_matrix, matrices, v_i.swapaxes(1, 2) @ du)
        weights.accumulate(by_matrix, owned=True)

    return tape.record(np.ascontiguousarray((u * v_j).transpose(1, 0, 2)), backward)
