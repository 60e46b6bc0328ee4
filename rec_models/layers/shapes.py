"""Concatenate, split, reshape and index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rec_models.engine.occurrences import Occurrences
from rec_models.engine.row_gradients import RowsVar
from rec_models.engine.tape import Array, Tape, Var, layer


@layer
def concat(tape: Tape, *inputs: Var) -> Var:
    """Flatten each example of each input and concatenate them.

    Parameters
    ----------
    *inputs : (B, ...)
        At least one; field vectors (B, F, D) or numbers (B, N).

    Returns
    -------
    (B, sum of widths)
        Backward splits the gradient likewise. A single input is reshaped without a copy; so is a first one
        with as much room after each example as the others need, see `embedding`.
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


@layer
def split(tape: Tape, rows: Var, widths: Sequence[int]) -> tuple[Var, ...]:
    """Split pulled rows into the parts of their table.

    Parameters
    ----------
    rows : (U, D)
    widths : sequence of int
        Floats of each part, D in all.

    Returns
    -------
    tuple of (U, width)
        Columns of ``rows``, not copied. Backward joins the gradients of the parts side by side.

    Raises
    ------
    ValueError
        When the widths do not sum to D.
    """
    ends = np.cumsum(widths)
    if rows.value.shape[1] != ends[-1]:
        raise ValueError(f"split expects {ends[-1]} floats a row, got {rows.value.shape[1]}")
    pieces = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
    if isinstance(rows, RowsVar):
        return tuple(rows.columns(piece) for piece in pieces)

    def backward(*gradients: Array) -> None:
        rows.accumulate(np.concatenate(gradients, axis=1), owned=True)

    return tape.record_many(tuple(rows.value[:, piece] for piece in pieces), backward)


@layer
def reshape(tape: Tape, x: Var, shape: tuple[int, ...]) -> Var:
    """Reshape the numbers of each example.

    Parameters
    ----------
    x : (B, ...)
    shape : tuple of int
        Shape of one example.

    Returns
    -------
    (B, *shape)
    """

    def backward(gradient: Array) -> None:
        x.accumulate(gradient.reshape(x.value.shape))

    return tape.record(x.value.reshape(x.value.shape[0], *shape), backward)


@layer
def take_fields(tape: Tape, vectors: Var, fields: Sequence[int]) -> Var:
    """Select the vectors of some fields.

    Parameters
    ----------
    vectors : (B, F, D)
    fields : sequence of int
        Positions of distinct fields.

    Returns
    -------
    (B, len(fields), D)
        Backward: zeros for the other fields.
    """
    chosen = list(fields)

    def backward(gradient: Array) -> None:
        onward = np.zeros_like(vectors.value)
        onward[:, chosen] = gradient
        vectors.accumulate(onward, owned=True)

    return tape.record(vectors.value[:, chosen], backward)


@layer
def gather(tape: Tape, rows: Var, indices: NDArray[np.integer]) -> Var:
    """Select rows by index.

    Parameters
    ----------
    rows : (U, D)
    indices : (N,) integers below U
        May repeat.

    Returns
    -------
    (N, D)
        ``y_n = x_{i(n)}`` with indices i; backward: each row sums the gradients of its occurrences, in order.
    """
    occurrences = Occurrences(None, np.ascontiguousarray(indices, np.int32))

    def backward(gradient: Array) -> None:
        rows.accumulate(occurrences.sum(np.ascontiguousarray(gradient), rows.value.shape), owned=True)

    return tape.record(rows.value[occurrences.rows], backward)
