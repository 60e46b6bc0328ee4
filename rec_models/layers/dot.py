"""One number an example from its dense fields: y = x w."""

from __future__ import annotations

from rec_models.tape import Array, Tape, Var

__all__ = ["dot"]


def dot(tape: Tape, x: Array, weights: Var) -> Var:
    """Weigh the dense fields: their part of a first-order term.

    Parameters
    ----------
    x : (B, N)
        Data, not a Var: no gradient flows into it.
    weights : (N,)

    Returns
    -------
    (B,)
        ``y = x w``; backward ``dw = x^T dy``.
    """

    def backward(gradient: Array) -> None:
        weights.accumulate(x.T @ gradient)

    return tape.record(x @ weights.value, backward)
