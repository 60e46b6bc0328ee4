"""Row sample: the same rows of every column, taken while a data set is read once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import types

from pslib.data.column_types import key_kind
from pslib.data.columns import is_list, keys_of

CHUNK_ROWS = 8_192
CHUNKS_MAX = 16
"""Chunks kept, at least half after a cut: 65,536 rows or more of a large data set."""
SAMPLE_VALUES = 1 << 22
"""Values kept over all columns: 32 MiB of numbers. 2,000 columns have 2,096 rows each."""


class RowSample:
    """Rows from chunks spread evenly over the files, since data may be sorted by its label.

    Chunks of `CHUNK_ROWS` rows count on from file to file; each n-th is kept, and n doubles when there are
    too many. Lists are not sampled, and of strings only their keys.
    """

    def __init__(self) -> None:
        self._every = 1
        self._first = self._rows = self._taken = 0
        self._parts: dict[str, dict[int, list[pa.Array]]] = {}

    def begin(self, rows: int, columns: int) -> None:
        """Begin a file with so many rows and columns; all its columns are added before the next file."""
        self._first += -(-self._rows // CHUNK_ROWS)
        self._rows = rows
        self._taken = self._taken or min(CHUNK_ROWS, SAMPLE_VALUES // CHUNKS_MAX // max(1, columns) + 1)
        while (self._first + -(-rows // CHUNK_ROWS)) > self._every * CHUNKS_MAX:
            self._every *= 2
        for chunks in self._parts.values():
            for number in [number for number in chunks if number % self._every]:
                del chunks[number]

    def add(self, name: str, array: pa.Array, first_row: int) -> None:
        """Add rows of a column of the file that has begun, from ``first_row`` on."""
        if is_list(array.type):
            return
        for number, start, stop in self._chosen(first_row, first_row + len(array)):
            part = _copied(array.slice(start - first_row, stop - start))
            self._parts.setdefault(name, {}).setdefault(number, []).append(part)

    def column(self, name: str) -> pa.Array | None:
        """Return the sampled values of a column; None without any."""
        chunks = self._parts.get(name, {})
        parts = [part for number in sorted(chunks) for part in chunks[number]]
        if not parts:
            return None
        kind = next((part.type for part in parts if not types.is_null(part.type)), parts[0].type)
        return pa.concat_arrays([part.cast(kind, safe=False) for part in parts])

    def _chosen(self, first_row: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Chunks with sampled rows among these of the file: number, first row, end."""
        for place in range(first_row // CHUNK_ROWS, -(-end // CHUNK_ROWS)):
            start = max(first_row, place * CHUNK_ROWS)
            stop = min(end, place * CHUNK_ROWS + self._taken)
            if (self._first + place) % self._every == 0 and start < stop:
                yield self._first + place, start, stop


def _copied(array: pa.Array) -> pa.Array:
    """Copy of a part, which would keep the whole array in memory; of strings eight bytes each."""
    if key_kind(array.type) == "string":
        return pa.Array.from_buffers(pa.binary(8), len(array), [None, pa.py_buffer(keys_of(array, 0))])
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return array.take(pa.array(np.arange(len(array))))
