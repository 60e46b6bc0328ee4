"""Shared state of the separately computed parts of a batch: scratch arrays, rows, dense parameters.

A large batch is computed in parts of some hundred examples, each with its own tape, by several threads. Sums
over the whole batch wait for all parts: `RowsVar`, and `DenseVar` of `rec_models.products`, record their
gradients instead of adding them. So no part needs arrays of the size of all rows or of a weight matrix, and
the order of sums does not depend on the threads.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cython_ext.model.row_places import place_of_joined
from rec_models.places import Places
from rec_models.tape import Array, Empty, Var

__all__ = ["Kept", "RowsGradient", "RowsVar", "Scratch", "joined", "parts_of"]

PART_ROWS_MIN, PART_ROWS_MAX, PARTS = 256, 512, 8
"""Sizes of parts: activations stay in a core's L2 cache (512 examples of 400 units: 0.8 MB), and matrix
products are large enough for BLAS: 54 ms for forward and backward products of 4,096 examples in parts of 512,
57 in parts of 256, 63 in parts of 128, 52 as a whole."""


def parts_of(rows: int, even: bool = False) -> list[slice]:
    """Cut a batch into parts, as a function of its size only, so that a step is bit-reproducible.

    Parameters
    ----------
    rows : int
    even : bool
        Whether the last part must be as large as the others, up to one example, for statistics of parts.
    """
    if even:
        count = max(1, -(-rows // PART_ROWS_MAX))
        return [slice(rows * i // count, rows * (i + 1) // count) for i in range(count)]
    size = min(max(-(-rows // PARTS), PART_ROWS_MIN), PART_ROWS_MAX)
    return [slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size)]


class Scratch:
    """Arrays reused by the next batch; each part of a batch has the rows of its examples."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: dict[tuple[object, ...], Array] = {}

    def of(self, part: slice, rows: int) -> Empty:
        """Return the allocator of one part's tape; the tapes of all parts allocate in the same order."""
        asked = 0

        def empty(shape: tuple[int, ...], dtype: Any) -> Array:
            nonlocal asked
            asked += 1
            if shape[0] != part.stop - part.start:  # not one row per example
                return np.empty(shape, dtype)
            return self.take((asked, shape[1:]), (rows, *shape[1:]), dtype)[part]

        return empty

    def take(self, name: object, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the array of a name, grown if needed and cut to the shape; contents are arbitrary."""
        key = (name, np.dtype(dtype))
        with self._lock:
            array = self._arrays.get(key)
            if array is None or array.shape[0] < shape[0] or array.shape[1:] != shape[1:]:
                array = self._arrays[key] = np.empty(shape, dtype)
        return array[: shape[0]]


class Kept:
    """Arrays that outlive a step, reused when no message and no caller refers to them."""

    def __init__(self) -> None:
        self._arrays: list[Array] = [np.empty(0, np.uint8)]
        # Reference counts of list, name and call differ by Python version, so the free count is measured.
        self._free = self._holders(0)

    def _holders(self, place: int) -> int:
        array = self._arrays[place]
        return sys.getrefcount(array)

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array with arbitrary contents."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        for place in range(len(self._arrays)):
            if self._holders(place) == self._free:  # no view and no buffer
                array = self._arrays[place]
                if array.nbytes < size:
                    array = self._arrays[place] = np.empty(size + size // 4, np.uint8)
                return array[:size].view(dtype).reshape(shape)
        array = np.empty(size + size // 4, np.uint8)  # numbers of rows differ between batches
        self._arrays.append(array)
        return array[:size].view(dtype).reshape(shape)


def joined(parts: Sequence[Array]) -> Array:
    """Concatenate arrays by rows, without a copy if they are adjacent in memory."""
    if len(parts) == 1:
        return parts[0]
    first, place = parts[0], place_of_joined(list(parts))
    if place < 0:
        return np.concatenate(parts)
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return np.ndarray(shape, first.dtype, first.base, place, first.strides)  # `as_strided` takes 8 us


@dataclass(frozen=True, slots=True)
class RowsGradient:
    """One gradient of a part for some columns of its rows.

    ``places`` None: ``addends`` is the (U, D) gradient of all rows.
    """

    places: Places | None
    addends: Array
    start: int
    stop: int


class RowsVar(Var):
    """Rows of a batch in the tape of one part, which records gradients.

    Parameters
    ----------
    value : (U, D)
    noted : list of RowsGradient
        Recorded gradients, in order; shared with `columns` of the var.
    start : int
        First column of ``value`` in the table's row.
    """

    __slots__ = ("noted", "start")

    def __init__(self, value: Array, noted: list[RowsGradient], start: int = 0) -> None:
        super().__init__(value)
        self.noted, self.start = noted, start

    def columns(self, piece: slice) -> RowsVar:
        """Return some columns of these rows as a `RowsVar`."""
        return RowsVar(self.value[:, piece], self.noted, self.start + piece.start)

    def accumulate(self, gradient: Array, *, owned: bool = False) -> None:
        """Record a gradient of all rows."""
        self._note(None, gradient)

    def accumulate_places(self, places: Places, addends: Array) -> None:
        """Record gradients of places for their rows."""
        self._note(places, addends)

    def _note(self, places: Places | None, addends: Array) -> None:
        stop = self.start + self.value.shape[1]
        self.noted.append(RowsGradient(places, addends, self.start, stop))
