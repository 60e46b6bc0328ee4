"""Pairs of fields, and operations on them shared by several layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rec_models.tape import Array

__all__ = ["pairs_of", "summed_by_field"]


def pairs_of(fields: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return left and right fields of all pairs ``i < j``, (P,): (0, 1), (0, 2), ...; P = F (F - 1) / 2."""
    left, right = np.triu_indices(fields, 1)
    return left, right


def summed_by_field(gradient: Array, fields: NDArray[np.intp], count: int) -> Array:
    """Sum pair values (P, B, D) over the pairs of each field given by (P,), as (B, F, D)."""
    chosen: NDArray[Any] = np.zeros((count, fields.size), gradient.dtype)
    chosen[fields, np.arange(fields.size)] = 1
    pairs, examples, dim = gradient.shape
    sums = chosen @ gradient.reshape(pairs, examples * dim)
    return np.ascontiguousarray(sums.reshape(count, examples, dim).transpose(1, 0, 2))
