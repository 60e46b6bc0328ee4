"""Another shape of each example's numbers."""

from __future__ import annotations

from rec_models.tape import Array, Tape, Var

__all__ = ["reshape"]


def reshape(tape: Tape, x: Var, shape: tuple[int, ...]) -> Var:
    """See each example's numbers in another shape.

    Parameters
    ----------
    x : (B, ...)
    shape : tuple of int
        Of one example; as many numbers as ``x`` has.

    Returns
    -------
    (B, *shape)
        The same numbers in the same order; so are the gradients.
    """

    def backward(gradient: Array) -> None:
        x.accumulate(gradient.reshape(x.value.shape))

    return tape.record(x.value.reshape(x.value.shape[0], *shape), backward)
