"""Buffer for the elements of one list column of a window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from cython_ext.data.examples import fill_keys
from pslib.data.columns import elements_of, key_source, numbers_of

__all__ = ["ListBuffer", "Lists"]

Lists = tuple[NDArray[Any], NDArray[Any], int | None]
"""Elements, offsets and salt, as `cython_ext.data.batch_keys.batch_keys` takes them."""

_NARROW_MAX = 2**31 - 1
_TINY_MAX = 2**16 - 1
_SMALLEST, _LARGEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


class ListBuffer:
    """Elements of one list column, in arrays reused from window to window.

    Integers are stored as integers of 2 or 4 bytes while all elements of the window fit and none is null:
    batches gather them in shuffled order from memory, and small integers cost less memory traffic than 8-byte
    keys. From the first part with any other element on, elements are stored as keys.

    Parameters
    ----------
    salt : int
        Salt of the field.
    """

    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._integers: dict[type[np.integer[Any]], NDArray[Any]] = {
            kind: np.empty(0, kind) for kind in (np.uint16, np.int32)
        }
        self._kind: type[np.integer[Any]] = np.uint16
        self._keys = np.empty((0, 1), np.uint64)
        self._offsets: NDArray[Any] = np.zeros(1, np.int32)
        self._rows = self._used = 0
        self._hashed = False

    def begin(self, rows: int) -> None:
        """Begin a new window of ``rows`` rows."""
        self._rows = self._used = 0
        self._hashed, self._kind = False, np.uint16
        if rows >= self._offsets.size or self._offsets.dtype != np.int32:
            self._offsets = np.zeros(rows + 1, np.int32)

    def add(self, array: pa.Array) -> None:
        """Append the lists of more rows."""
        elements, bounds = elements_of(array)
        small = None if self._hashed else _small_integers(elements)
        if small is None:
            self._add_keys(elements)
        else:
            self._add_integers(*small)
        stop, before = self._rows + len(array), self._used
        self._used += len(elements)
        if self._used > _NARROW_MAX and self._offsets.dtype == np.int32:
            self._offsets = self._offsets.astype(np.int64)
        ends = self._offsets[self._rows + 1 : stop + 1]
        kind = np.int32 if bounds.dtype == ends.dtype == np.int32 else np.int64
        np.add(bounds[1:], before - int(bounds[0]), out=ends, dtype=kind, casting="same_kind")
        self._rows = stop

    def lists(self) -> Lists:
        """Return all lists of the window."""
        offsets = self._offsets[: self._rows + 1]
        if self._hashed:
            return self._keys[: self._used, 0], offsets, None
        return self._integers[self._kind][: self._used], offsets, self._salt

    def _add_integers(self, values: NDArray[Any], kind: type[np.integer[Any]]) -> None:
        if kind is not self._kind and kind is np.int32:
            wider = _with_room(self._integers[kind], 0, self._used)
            wider[: self._used] = self._integers[self._kind][: self._used]
            self._integers[kind], self._kind = wider, kind
        room = self._integers[self._kind] = _with_room(self._integers[self._kind], self._used, values.size)
        np.copyto(room[self._used : self._used + values.size], values, casting="unsafe")

    def _add_keys(self, elements: pa.Array) -> None:
        if not self._hashed:
            self._keys = _with_room(self._keys, 0, self._used)
            before = self._integers[self._kind][: self._used]
            fill_keys([(before, None, 0, self._salt, None)], self._keys[: self._used])
            self._hashed = True
        self._keys = _with_room(self._keys, self._used, len(elements))
        end = self._used + len(elements)
        fill_keys([key_source(elements, self._salt)], self._keys[self._used : end])


def _with_room(array: NDArray[Any], used: int, more: int) -> NDArray[Any]:
    """Return the array, or a larger copy of its used part, with room for more elements."""
    if used + more <= len(array):
        return array
    grown = np.empty((max(used + more, 2 * len(array)), *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown


def _small_integers(elements: pa.Array) -> tuple[NDArray[Any], type[np.integer[Any]]] | None:
    """Elements in the smallest integer type, if they are integers that fit int32; else None."""
    if not len(elements):
        return np.empty(0, np.uint16), np.uint16
    if not types.is_integer(elements.type) or elements.null_count:
        return None
    values = numbers_of(elements)
    every = int(np.bitwise_or.reduce(values))  # one pass; negative if one of them is
    if 0 <= every <= _TINY_MAX:
        return values, np.uint16
    fits = np.can_cast(values.dtype, np.int32)
    return (values, np.int32) if fits or (values.min() >= _SMALLEST and values.max() <= _LARGEST) else None
