"""Mean of the elements so far: y_n = (x_1 + ... + x_n) / n, list by list."""

from __future__ import annotations

import numpy as np

from rec_models.packed import Packed
from rec_models.places import Places
from rec_models.tape import Array, Tape, Var

__all__ = ["prefix_mean"]


def prefix_mean(tape: Tape, x: Var, steps: Packed) -> Var:
    """Mean of every list up to every element.

    Parameters
    ----------
    tape : Tape
    x : (N, D)
        Packed as ``steps`` says.
    steps : Packed
        Which element of which list stands where.

    Returns
    -------
    (N, D)
        Packed alike. Backward: each element gets ``dy / n`` of every element from it on.
    """
    pairs = steps.prefixes()
    if not pairs.items.size:
        return tape.record(x.value, x.accumulate)
    counts = np.diff(pairs.starts)[:, None].astype(x.value.dtype)
    value = np.add.reduceat(x.value[pairs.items], pairs.starts[:-1], axis=0) / counts

    def backward(gradient: Array) -> None:
        shares = (gradient / counts)[pairs.owners]
        x.accumulate(Places(None, pairs.items, 1, None).sum(shares, x.value.shape), owned=True)

    return tape.record(value, backward)
