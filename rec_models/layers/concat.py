"""Lay vectors side by side: the input of an MLP."""

from __future__ import annotations

import math

import numpy as np

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
        Backward cuts the gradient at the same places. A single input is reshaped, never copied.
    """
    B = inputs[0].value.shape[0]
    widths = [math.prod(x.value.shape[1:]) for x in inputs]
    flat = [x.value.reshape(B, width) for x, width in zip(inputs, widths, strict=True)]

    def backward(gradient: Array) -> None:
        start = 0
        for x, width in zip(inputs, widths, strict=True):
            x.accumulate(gradient[:, start : start + width].reshape(x.value.shape))
            start += width

    return tape.record(flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1), backward)
