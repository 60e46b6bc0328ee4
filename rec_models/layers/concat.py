"""Lay vectors side by side: the input of an MLP."""

from __future__ import annotations

import math

from rec_models.tape import Array, Tape, Var

__all__ = ["concat"]


def concat(tape: Tape, *inputs: Var) -> Var:
    """Flatten each example of each input and lay them side by side.

    Parameters
    ----------
    *inputs : (B, ...)
        At least one; field vectors (B, F, D) or plain numbers (B, N).

    Returns
    -------
    (B, sum of widths)
        Backward cuts the gradient at the same places. A single input is reshaped, never copied; nor is a
        first one with as much room after each example as the others need.
    """
    first, *others = inputs
    B = first.value.shape[0]
    widths = [math.prod(x.value.shape[1:]) for x in inputs]
    shape = (B, sum(widths))
    if first.room is not None and first.room.shape == shape:
        value, first.room = first.room, None  # it is used up
    elif not others:
        value = first.value.reshape(shape)
    else:
        value = tape.empty(shape, first.value.dtype)
        value[:, : widths[0]] = first.value.reshape(B, widths[0])
    start = widths[0]
    for x, width in zip(others, widths[1:], strict=True):
        value[:, start : start + width] = x.value.reshape(B, width)
        start += width

    def backward(gradient: Array) -> None:
        start = 0
        for x, width in zip(inputs, widths, strict=True):
            piece = gradient[:, start : start + width].reshape(x.value.shape)
            x.accumulate(piece, owned=output.owns_gradient)
            start += width

    output = tape.record(value, backward)
    return output
