"""Sums of weighted elements of lists: y_b = sum_j a_j h_j."""

from __future__ import annotations

import numpy as np

from rec_models.lists import Offsets, repeated, summed
from rec_models.tape import Array, Tape, Var

__all__ = ["weighted_sum"]


def weighted_sum(tape: Tape, weights: Var, h: Var, offsets: Offsets) -> Var:
    """Sum up each list, every element with a weight of its own.

    Parameters
    ----------
    weights : (N,)
    h : (N, D)
        Elements, one list after the other.
    offsets : (B + 1,) int64
        List ``b`` is ``h[offsets[b]:offsets[b + 1]]``.

    Returns
    -------
    (B, D)
        ``y_b = sum of a_j h_j over the elements of list b``, zeros for an empty one; backward
        ``da_j = <dy_b, h_j>``, ``dh_j = a_j dy_b``.
    """
    a = weights.value[:, None]

    def backward(gradient: Array) -> None:
        of_list = repeated(gradient, offsets)
        weights.accumulate(np.einsum("nd,nd->n", of_list, h.value), owned=True)
        h.accumulate(a * of_list, owned=True)

    return tape.record(summed(a * h.value, offsets), backward)
