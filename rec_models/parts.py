"""What is shared by the parts of a batch that are computed apart: scratch arrays, rows, dense parameters.

A large batch is computed in parts of some hundred examples, each with a tape of its own, by several threads.
Sums over the examples of the whole batch wait until all parts are there: `RowsVar`, and `DenseVar` of
`rec_models.products`, note what they are given instead of adding it up. So no part needs arrays of the size
of all rows or of a weight matrix, and the sums run in an order that does not depend on who computed what.
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
"""A part's activations stay in a core's L2 cache (512 examples of 400 units: 0.8 MB), and its matrix products
are large enough for BLAS: 54 ms for the forward and backward products of 4,096 examples in parts of 512, 57
in parts of 256, 63 in parts of 128, 52 as a whole."""


def parts_of(rows: int, even: bool = False) -> list[slice]:
    """Where a batch is cut into parts: a function of its size alone, so that a step's bits repeat.

    Parameters
    ----------
    rows : int
    even : bool
        Whether the last part must be as large as the others, up to one example: statistics are of parts.
    """
    if even:
        count = max(1, -(-rows // PART_ROWS_MAX))
        return [slice(rows * i // count, rows * (i + 1) // count) for i in range(count)]
    size = min(max(-(-rows // PARTS), PART_ROWS_MIN), PART_ROWS_MAX)
    return [slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size)]


class Scratch:
    """Arrays that the next batch uses again; each part of a batch has its examples' rows of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: dict[tuple[object, ...], Array] = {}

    def of(self, part: slice, rows: int) -> Empty:
        """What gives the arrays of one part's tape; the tapes of all parts ask in the same order."""
        asked = 0

        def empty(shape: tuple[int, ...], dtype: Any) -> Array:
            nonlocal asked
            asked += 1
            if shape[0] != part.stop - part.start:  # not one row an example
                return np.empty(shape, dtype)
            return self.take((asked, shape[1:]), (rows, *shape[1:]), dtype)[part]

        return empty

    def take(self, name: object, shape: tuple[int, ...], dtype: Any) -> Array:
        """The array of a name with at least so many rows, cut to the shape; with anything in it."""
        key = (name, np.dtype(dtype))
        with self._lock:
            array = self._arrays.get(key)
            if array is None or array.shape[0] < shape[0] or array.shape[1:] != shape[1:]:
                array = self._arrays[key] = np.empty(shape, dtype)
        return array[: shape[0]]


class Kept:
    """Arrays that leave a step: taken again when nobody holds them any more, no message and no caller."""

    def __init__(self) -> None:
        self._arrays: list[Array] = [np.empty(0, np.uint8)]
        # Versions of Python count differently what list, name and call hold: so it is measured.
        self._free = self._holders(0)

    def _holders(self, place: int) -> int:
        array = self._arrays[place]
        return sys.getrefcount(array)

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array with anything in it."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        for place in range(len(self._arrays)):
            if self._holders(place) == self._free:  # no view and no buffer
                array = self._arrays[place]
                if array.nbytes < size:
                    array = self._arrays[place] = np.empty(size + size // 4, np.uint8)
                return array[:size].view(dtype).reshape(shape)
        array = np.empty(size + size // 4, np.uint8)  # batches differ in how many rows they have
        self._arrays.append(array)
        return array[:size].view(dtype).reshape(shape)


def joined(parts: Sequence[Array]) -> Array:
    """Arrays one below the other, without a copy where they stand so in memory."""
    if len(parts) == 1:
        return parts[0]
    first, place = parts[0], place_of_joined(list(parts))
    if place < 0:
        return np.concatenate(parts)
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return np.ndarray(shape, first.dtype, first.base, place, first.strides)  # `as_strided` takes 8 us


@dataclass(frozen=True, slots=True)
class RowsGradient:
    """One gradient that a part has for some columns of its rows.

    ``places`` None: ``addends`` is the (U, D) gradient of all rows.
    """

    places: Places | None
    addends: Array
    start: int
    stop: int


class RowsVar(Var):
    """Rows of a batch in the tape of one part; notes gradients.

    Parameters
    ----------
    value : (U, D)
    noted : list of RowsGradient
        What is noted, in order; `columns` of a var share it.
    start : int
        First column of ``value`` in the table's row.
    """

    __slots__ = ("noted", "start")

    def __init__(self, value: Array, noted: list[RowsGradient], start: int = 0) -> None:
        super().__init__(value)
        self.noted, self.start = noted, start

    def columns(self, piece: slice) -> RowsVar:
        """Some columns of these rows, as rows."""
        return RowsVar(self.value[:, piece], self.noted, self.start + piece.start)

    def accumulate(self, gradient: Array, *, owned: bool = False) -> None:
        """Note a gradient of all rows."""
        self._note(None, gradient)

    def accumulate_places(self, places: Places, addends: Array) -> None:
        """Note what places give their rows."""
        self._note(places, addends)

    def _note(self, places: Places | None, addends: Array) -> None:
        stop = self.start + self.value.shape[1]
        self.noted.append(RowsGradient(places, addends, self.start, stop))
