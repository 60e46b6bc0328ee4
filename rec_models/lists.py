"""Maps from lists to their elements and back, in flat arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.row_places import pool_rows
from rec_models.tape import Array

__all__ = ["Offsets", "repeated", "summed"]

Offsets: TypeAlias = NDArray[np.int64]
"""(B + 1,): list ``b`` is elements ``offsets[b]`` to ``offsets[b + 1] - 1``."""


def repeated(x: Array, offsets: Offsets) -> Array:
    """Return for each element the value ``x`` (B, ...) of its list, (N, ...)."""
    return np.repeat(x, np.diff(offsets), axis=0)


def summed(x: Array, offsets: Offsets) -> Array:
    """Return for each list the sum of ``x`` (N, D) over its elements in order, (B, D); zeros if empty."""
    return pool_rows(np.ascontiguousarray(x), np.arange(x.shape[0], dtype=np.int32), offsets, False)
