"""The largest of each list's vectors, float by float: max pooling over lists of any length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rec_models.tape import Array, Tape, Var

__all__ = ["list_max"]


def list_max(tape: Tape, x: Var, offsets: NDArray[np.int64]) -> Var:
    """Pool the elements of lists that stand one after the other.

    Parameters
    ----------
    x : (N, D)
    offsets : (B + 1,)
        Where each list begins, and N.

    Returns
    -------
    (B, D)
        ``y_b = max over the elements n of list b of x_n``, zeros for an empty list. Backward hands each float
        of ``dy_b`` to the first element that has the largest.
    """
    lists, dim = offsets.size - 1, x.value.shape[1]
    full = np.flatnonzero(np.diff(offsets))
    value = np.zeros((lists, dim), x.value.dtype)
    winners = np.empty((0, dim), np.int64)
    if full.size:
        starts = offsets[full]
        value[full] = np.maximum.reduceat(x.value, starts, axis=0)
        owners = np.repeat(np.arange(lists), np.diff(offsets))
        places = np.arange(x.value.shape[0])[:, None]
        candidates = np.where(x.value == value[owners], places, x.value.shape[0])
        winners = np.minimum.reduceat(candidates, starts, axis=0)

    def backward(gradient: Array) -> None:
        onward = np.zeros_like(x.value)
        onward[winners, np.arange(dim)] = gradient[full]
        x.accumulate(onward, owned=True)

    return tape.record(value, backward)
