"""Rows by their places: y_n = x_{p(n)}."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rec_models.places import Places
from rec_models.tape import Array, Tape, Var

__all__ = ["gather"]


def gather(tape: Tape, rows: Var, places: NDArray[np.integer]) -> Var:
    """Rows that stand at some places.

    Parameters
    ----------
    rows : (U, D)
    places : (N,) integers below U
        Any number of times each.

    Returns
    -------
    (N, D)
        Backward: each row sums the gradients of its places, in their order.
    """
    named = Places(None, np.ascontiguousarray(places, np.int32), 1, None)

    def backward(gradient: Array) -> None:
        rows.accumulate(named.sum(np.ascontiguousarray(gradient), rows.value.shape), owned=True)

    return tape.record(rows.value[named.rows], backward)
