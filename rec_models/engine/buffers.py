"""Arrays that a step reuses: scratch space of its parts, and results that a message may still hold."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from cython_ext.model.row_places import place_of_joined
from rec_models.engine.tape import Array, Empty


class Scratch:
    """Arrays reused by the next batch; each part of a batch has the rows of its examples."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: dict[tuple[object, ...], Array] = {}

    def of(self, part: slice, rows: int) -> Empty:
        """Return the allocator of one part's tape; the tapes of all parts allocate in the same order."""
        calls = 0

        def empty(shape: tuple[int, ...], dtype: Any) -> Array:
            nonlocal calls
            calls += 1
            if shape[0] != part.stop - part.start:  # not one row per example
                return np.empty(shape, dtype)
            return self.take((calls, shape[1:]), (rows, *shape[1:]), dtype)[part]

        return empty

    def take(self, name: object, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the array of a name, grown if needed and cut to the shape; contents are arbitrary."""
        key = (name, np.dtype(dtype))
        with self._lock:
            array = self._arrays.get(key)
            if array is None or array.shape[0] < shape[0] or array.shape[1:] != shape[1:]:
                array = self._arrays[key] = np.empty(shape, dtype)
        return array[: shape[0]]


class ResultArrays:
    """Arrays that outlive a step, reused when no message and no caller refers to them."""

    def __init__(self) -> None:
        self._arrays: list[Array] = [np.empty(0, np.uint8)]
        # Reference counts of list, name and call differ by Python version, so the free count is measured.
        self._free = self._references(0)

    def _references(self, index: int) -> int:
        array = self._arrays[index]
        return sys.getrefcount(array)

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array with arbitrary contents."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        for index in range(len(self._arrays)):
            if self._references(index) == self._free:  # no view and no buffer
                array = self._arrays[index]
                if array.nbytes < size:
                    array = self._arrays[index] = np.empty(size + size // 4, np.uint8)
                return array[:size].view(dtype).reshape(shape)
        array = np.empty(size + size // 4, np.uint8)  # numbers of rows differ between batches
        self._arrays.append(array)
        return array[:size].view(dtype).reshape(shape)


def joined(parts: Sequence[Array]) -> Array:
    """Concatenate arrays by rows, without a copy if they are adjacent in memory."""
    if len(parts) == 1:
        return parts[0]
    first, offset = parts[0], place_of_joined(list(parts))
    if offset < 0:
        return np.concatenate(parts)
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return np.ndarray(shape, first.dtype, first.base, offset, first.strides)  # `as_strided` takes 8 us
