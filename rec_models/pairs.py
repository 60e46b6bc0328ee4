"""Pairs of fields, and what several layers do with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rec_models.tape import Array

__all__ = ["pairs_of", "summed_by_field"]


def pairs_of(fields: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(P,) left and right fields of all pairs ``i < j`` in order: (0, 1), (0, 2), ...; P = F (F - 1) / 2."""
    left, right = np.triu_indices(fields, 1)
    return left, right


def summed_by_field(gradient: Array, fields: NDArray[np.intp], count: int) -> Array:
    """(B, F, D): for each field the sum of what (P, B, D) gives to the fields that (P,) names."""
    chosen: NDArray[Any] = np.zeros((count, fields.size), gradient.dtype)
    chosen[fields, np.arange(fields.size)] = 1
    pairs, examples, dim = gradient.shape
    sums = chosen @ gradient.reshape(pairs, examples * dim)
    return np.ascontiguousarray(sums.reshape(count, examples, dim).transpose(1, 0, 2))
