"""Sum the terms of a logit."""

from __future__ import annotations

import numpy as np

from rec_models.tape import Array, Tape, Var

__all__ = ["add"]


def add(tape: Tape, first: Var, *others: Var) -> Var:
    """Add terms, the first one first.

    Parameters
    ----------
    first, *others : (B,), or (1,) for a bias
        At least one of them (B,).

    Returns
    -------
    (B,)
        Backward hands the gradient to every term, summed over the batch for a bias.
    """
    value = first.value
    for term in others:
        shape = np.broadcast_shapes(value.shape, term.value.shape)
        value = np.add(value, term.value, out=tape.empty(shape, value.dtype))

    def backward(gradient: Array) -> None:
        for term in (first, *others):
            whole = term.value.shape == gradient.shape
            term.accumulate(gradient if whole else gradient.sum(keepdims=True))

    return tape.record(value, backward)
