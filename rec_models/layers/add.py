"""Sum the terms of a logit."""

from __future__ import annotations

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
        value = value + term.value

    def backward(gradient: Array) -> None:
        for term in (first, *others):
            whole = term.value.shape == gradient.shape
            term.accumulate(gradient if whole else gradient.sum(keepdims=True))

    return tape.record(value, backward)
