"""Softmax within each list."""

from __future__ import annotations

import numpy as np

from rec_models.lists import Offsets, repeated, summed
from rec_models.tape import Array, Tape, Var

__all__ = ["list_softmax"]


def list_softmax(tape: Tape, scores: Var, offsets: Offsets) -> Var:
    """Make the weights of each list's elements positive, with a sum of 1.

    Parameters
    ----------
    scores : (N,)
        Of elements, one list after the other.
    offsets : (B + 1,) int64
        List ``b`` is ``scores[offsets[b]:offsets[b + 1]]``.

    Returns
    -------
    (N,)
        ``a_j = exp(s_j) / sum of exp(s_i) over the list``; backward ``ds_j = a_j (da_j - <a, da>)``, the
        inner product over the list.
    """
    s = scores.value
    filled = offsets[:-1][np.diff(offsets) > 0]
    highest = np.maximum.reduceat(s, filled) if filled.size else s
    powers = np.exp(s - np.repeat(highest, np.diff(np.append(filled, s.size))) if filled.size else s)
    a = powers / repeated(summed(powers[:, None], offsets)[:, 0], offsets)

    def backward(gradient: Array) -> None:
        inner = summed((a * gradient)[:, None], offsets)[:, 0]
        scores.accumulate(a * (gradient - repeated(inner, offsets)), owned=True)

    return tape.record(a, backward)
