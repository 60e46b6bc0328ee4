"""Element-wise product: a gate."""

from __future__ import annotations

from rec_models.tape import Array, Tape, Var

__all__ = ["multiply"]


def multiply(tape: Tape, x: Var, gate: Var, factor: float = 1.0) -> Var:
    """Scale every element.

    Parameters
    ----------
    x : (B, N)
    gate : (B, N), or (1, N) for all examples alike
    factor : float

    Returns
    -------
    (B, N)
        ``y = factor x * g``; backward ``dx = factor dy * g``, ``dg = factor dy * x``, summed over the batch
        for a gate of all examples.
    """
    scale = x.value.dtype.type(factor)

    def backward(gradient: Array) -> None:
        scaled = gradient * scale
        x.accumulate(scaled * gate.value, owned=True)
        each = scaled * x.value
        whole = gate.value.shape == each.shape
        gate.accumulate(each if whole else each.sum(axis=0, keepdims=True), owned=True)

    return tape.record(scale * x.value * gate.value, backward)
