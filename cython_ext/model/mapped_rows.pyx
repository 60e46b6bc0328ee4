"""Rows that stand in other memory, such as a mapped file, found by key.

The index is a table of cells, probed linearly; a cell is 0 if it is empty, else

    cell = tag << 48 | block << 24 | place

where ``tag`` is the low 16 bits of the mixed key, whose high ones choose the cell, ``block``, counted from 1,
an array of rows that was added, and ``place`` the row in it. A cell of an erased key keeps its tag and gets
block 0, place 1, so that probes go on behind it. Cells are filled to FILL at most: 10.7 bytes a row. Keys and
weights stay where they are.

The time is memory latency: `find` goes over its keys in blocks and prefetches the cells of a block, then
their keys and rows, before it reads them.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from cython_ext.common.checks cimport checked_array, checked_target, whole_number
from cython_ext.common.hashing cimport pslib_mix64

import numpy as np

cnp.import_array()

__all__ = ["MappedRows"]

cdef extern from "common/vectors.h" nogil:
    void PSLIB_PREFETCH(const void *address)

cdef extern from *:
    """
    typedef unsigned __int128 pslib_u128;
    static inline uint64_t pslib_cell_of(uint64_t mixed, uint64_t cells)
    {
        return (uint64_t)(((pslib_u128)mixed * cells) >> 64);
    }
    """
    uint64_t pslib_cell_of(uint64_t mixed, uint64_t cells) nogil

cdef enum:
    BLOCK = 64  # keys whose cells, then keys and rows, are prefetched together
    PARTS_MAX = 8  # pslib.table.tables.PARTS_MAX
    LINE_FLOATS = 16  # of a cache line

cdef uint64_t PLACE_BITS = 24, TAG_SHIFT = 48
cdef uint64_t PLACE_MASK = (1 << 24) - 1
cdef uint64_t TAG_MASK = 0xFFFF << 48
cdef uint64_t ERASED = 1
ROWS_MAX = 1 << 24  # of one array, and arrays of one index
FILL = 0.75
_BOOL = np.dtype(np.bool_)
_F32 = np.dtype(np.float32)
_U64 = np.dtype(np.uint64)


cdef struct Block:
    const uint64_t *keys
    const float *parts[PARTS_MAX]


cdef class MappedRows:
    """Read-only rows by key, over arrays of keys and weights that are kept as they are.

    `find` may be called by several threads at once, `add` and `erase` by one, and by none that finds.

    Parameters
    ----------
    rows : int
        Upper bound of the rows that are added: the index does not grow.
    dims : sequence of int
        Floats of each part of a row; ``sum(dims)`` of a row that `find` returns.

    Attributes
    ----------
    count : int
        Number of keys.
    dim : int
    """

    cdef readonly int64_t count, dim
    cdef int64_t capacity, used, blocks, room, parts
    cdef int64_t dims[PARTS_MAX]
    cdef uint64_t cells
    cdef uint64_t *table
    cdef Block *block
    cdef list kept  # the arrays that the pointers of blocks point into
    cdef object cell_array

    def __init__(self, rows, dims):
        self.capacity = whole_number("MappedRows: rows", rows, 0, 1 << 40)
        if not 1 <= len(dims) <= PARTS_MAX:
            raise ValueError(f"MappedRows: expected 1 to {PARTS_MAX} parts, got {len(dims)}")
        self.parts = len(dims)
        for part in range(self.parts):
            self.dims[part] = whole_number("MappedRows: dims", dims[part], 1, 1 << 20)
            self.dim += self.dims[part]
        self.cells = max(16, int(self.capacity / FILL) + 1)
        self.cell_array = np.zeros(self.cells, np.uint64)
        self.table = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>self.cell_array)
        self.kept = []

    def __dealloc__(self):
        free(self.block)

    def keys(self):
        """Return the keys of all rows, in any order.

        Returns
        -------
        (count,) uint64
        """
        found = np.empty(self.count, np.uint64)
        cdef uint64_t *out = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>found)
        cdef uint64_t at, cell
        cdef int64_t done = 0
        with nogil:
            for at in range(self.cells):
                cell = self.table[at]
                if cell != 0 and cell & ~TAG_MASK != ERASED:
                    out[done] = self._key(cell)
                    done += 1
        return found

    def add(self, keys, parts):
        """Add rows; of a key that is there already the new one counts.

        Parameters
        ----------
        keys : (n,) uint64
            Distinct.
        parts : sequence of (n, d) float32
            Of each part of the rows; all are kept, and must not change.

        Returns
        -------
        int
            How many keys are new.
        """
        keys = checked_array("add: keys", keys, _U64, (None,))
        cdef int64_t n = keys.shape[0], i, before = self.count
        if n > ROWS_MAX:
            raise ValueError(f"add: expected at most {ROWS_MAX} rows, got {n}")
        if len(parts) != self.parts:
            raise ValueError(f"add: expected {self.parts} parts, got {len(parts)}")
        if self.used + n > self.capacity:
            raise ValueError(f"add: expected at most {self.capacity} rows in all, got {self.used + n}")
        rows = [
            checked_array("add: parts", part, _F32, (n, self.dims[place])) for place, part in enumerate(parts)
        ]
        if n == 0:
            return 0
        if self.blocks == self.room:
            self._make_room()
        cdef Block *block = &self.block[self.blocks]
        block.keys = <const uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>keys)
        for place, part in enumerate(rows):
            block.parts[place] = <const float *>cnp.PyArray_DATA(<cnp.ndarray>part)
        self.kept.append((keys, rows))
        self.blocks += 1
        cdef uint64_t number = <uint64_t>self.blocks << PLACE_BITS
        cdef const uint64_t *each = block.keys
        with nogil:
            for i in range(n):
                if i + BLOCK < n:
                    PSLIB_PREFETCH(&self.table[pslib_cell_of(pslib_mix64(each[i + BLOCK]), self.cells)])
                self._put(each[i], number | <uint64_t>i)
        return self.count - before

    def erase(self, keys):
        """Erase the rows of keys; those without one are passed over.

        Parameters
        ----------
        keys : (n,) uint64
        """
        keys = checked_array("erase: keys", keys, _U64, (None,))
        cdef int64_t n = keys.shape[0], i
        cdef const uint64_t *each = <const uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>keys)
        cdef uint64_t at
        with nogil:
            for i in range(n):
                at = self._cell(each[i], pslib_mix64(each[i]))
                if self.table[at] != 0:
                    self.table[at] = (self.table[at] & TAG_MASK) | ERASED
                    self.count -= 1

    def find(self, keys, rows):
        """Copy the rows of keys.

        Parameters
        ----------
        keys : (n,) uint64
        rows : (n, dim) float32
            OUT; the rows of keys that are absent are not written.

        Returns
        -------
        (n,) bool
            True where a key has a row.
        """
        keys = checked_array("find: keys", keys, _U64, (None,))
        cdef int64_t n = keys.shape[0]
        checked_target("find: rows", rows, _F32, (n, self.dim))
        found = np.empty(n, np.bool_)
        cdef const uint64_t *each = <const uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>keys)
        cdef float *out = <float *>cnp.PyArray_DATA(<cnp.ndarray>rows)
        cdef uint8_t *has = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>found)
        with nogil:
            self._find(each, n, out, has)
        return found

    cdef void _find(self, const uint64_t *keys, int64_t n, float *out, uint8_t *has) noexcept nogil:
        cdef int64_t start, i, m, part, line
        cdef uint64_t mixed[BLOCK]
        cdef uint64_t cell[BLOCK]
        cdef const Block *block
        cdef const float *row
        start = 0
        while start < n:
            m = min(<int64_t>BLOCK, n - start)
            for i in range(m):
                mixed[i] = pslib_mix64(keys[start + i])
                PSLIB_PREFETCH(&self.table[pslib_cell_of(mixed[i], self.cells)])
            for i in range(m):  # the first cell with this tag, whose key is likely the same
                cell[i] = self._tagged(mixed[i])
                if cell[i]:
                    block = &self.block[((cell[i] & ~TAG_MASK) >> PLACE_BITS) - 1]
                    PSLIB_PREFETCH(&block.keys[cell[i] & PLACE_MASK])
                    for part in range(self.parts):
                        row = &block.parts[part][(cell[i] & PLACE_MASK) * self.dims[part]]
                        for line in range((self.dims[part] + LINE_FLOATS - 1) / LINE_FLOATS):
                            PSLIB_PREFETCH(row + line * LINE_FLOATS)
            for i in range(m):
                if cell[i] and self._key(cell[i]) != keys[start + i]:
                    cell[i] = self.table[self._cell(keys[start + i], mixed[i])]
                has[start + i] = cell[i] != 0
                if cell[i]:
                    self._copy(cell[i], &out[(start + i) * self.dim])
            start += BLOCK

    cdef inline void _copy(self, uint64_t cell, float *out) noexcept nogil:
        cdef const Block *block = &self.block[((cell & ~TAG_MASK) >> PLACE_BITS) - 1]
        cdef uint64_t place = cell & PLACE_MASK
        cdef int64_t part
        for part in range(self.parts):
            memcpy(out, &block.parts[part][place * self.dims[part]], self.dims[part] * 4)
            out += self.dims[part]

    cdef inline uint64_t _key(self, uint64_t cell) noexcept nogil:
        return self.block[((cell & ~TAG_MASK) >> PLACE_BITS) - 1].keys[cell & PLACE_MASK]

    cdef inline uint64_t _tagged(self, uint64_t mixed) noexcept nogil:
        """Return the first cell with the tag of a key, or 0."""
        cdef uint64_t at = pslib_cell_of(mixed, self.cells), cell, tag = mixed << TAG_SHIFT
        while True:
            cell = self.table[at]
            if cell == 0 or (cell & TAG_MASK == tag and cell & ~TAG_MASK != ERASED):
                return cell
            at = at + 1 if at + 1 < self.cells else 0

    cdef inline uint64_t _cell(self, uint64_t key, uint64_t mixed) noexcept nogil:
        """Return the number of the cell of a key, or of the empty one where it would be."""
        cdef uint64_t at = pslib_cell_of(mixed, self.cells), cell, tag = mixed << TAG_SHIFT
        while True:
            cell = self.table[at]
            if cell == 0:
                return at
            if cell & TAG_MASK == tag and cell & ~TAG_MASK != ERASED and self._key(cell) == key:
                return at
            at = at + 1 if at + 1 < self.cells else 0

    cdef inline void _put(self, uint64_t key, uint64_t place) noexcept nogil:
        cdef uint64_t mixed = pslib_mix64(key)
        cdef uint64_t at = self._cell(key, mixed)
        if self.table[at] == 0:
            self.count += 1
            self.used += 1
        self.table[at] = mixed << TAG_SHIFT | place

    cdef object _make_room(self):
        cdef int64_t room = max(16, 2 * self.room)
        if room > ROWS_MAX:
            raise ValueError(f"add: expected at most {ROWS_MAX} arrays")
        cdef Block *larger = <Block *>realloc(self.block, room * sizeof(Block))
        if larger == NULL:
            raise MemoryError("add: no memory for the places of rows")
        self.block, self.room = larger, room
