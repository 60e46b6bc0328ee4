"""Cut pulled rows into the parts of their table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rec_models.parts import RowsVar
from rec_models.tape import Array, Tape, Var

__all__ = ["split"]


def split(tape: Tape, rows: Var, widths: Sequence[int]) -> tuple[Var, ...]:
    """Give each part of a row a Var of its own.

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
