"""Which of a batch's keys a trainer has the rows of: spots, and when they were pulled (`row_cache.pyx`).

A row is served from its spot in batch t

    if  t - pulled <= age                                          or
    if  t - touched <= age  and  t - pulled <= age * LIVES  and it has been pulled before in this spot

where ``pulled`` is the batch that asked a server for it last and ``touched`` the last batch that had it.

The index is a table of at least twice as many cells as spots, probed linearly; a cell has half of the mixed
key and the spot. Removal moves later entries back, so there are no tombstones. A new key takes a free spot,
else the first of the next SCAN spots that no later batch can be served from, else the one among them that
was touched longest ago.

All of it is waiting for memory, so keys go in blocks, and what the next step reads of a block is asked for
together. AMD Zen 4, 200,000 spots, 39,000 keys a batch, 24,000 of them missed: 100 ns a key instead of 182.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint64_t, uintptr_t

from cython_ext.common.checks cimport checked_array, keys_of, whole_number
from cython_ext.common.hashing cimport pslib_mix64

import numpy as np

cnp.import_array()

__all__ = ["CachedKeys"]

cdef enum:
    SCAN = 32  # spots looked at for one to replace
    LIVES = 8  # how many ages a row may be served that is written back, before it is pulled anew
    BLOCK = 64  # keys whose cells and spots are asked for together
    TAG = 0xFFFFFFFF  # half a cell
SPOTS_MAX = 1 << 28  # so that cells have places of less than 32 bits
_SPOT = np.dtype([("key", np.uint64), ("pulled", np.int64), ("repeated", np.int64), ("room", np.int64)])
_U64 = np.dtype(np.uint64)


cdef inline int32_t spot_of(uint64_t cell) noexcept nogil:
    return <int32_t>((cell & TAG) - 1)


cdef class CachedKeys:
    """The keys of at most ``spots`` rows, served for ``age`` batches.

    Parameters
    ----------
    spots : int
        1..2^28. One takes 56 to 72 bytes.
    age : int
        In batches, at least 1; `CachedKeys.age` may be changed between batches.
    """

    def __init__(self, spots, age):
        self.spots = whole_number("RowCache: spots", spots, 1, SPOTS_MAX)
        self.age = whole_number("RowCache: age", age, 1, 1 << 31)
        cell_count = 16
        while cell_count < 2 * self.spots:
            cell_count *= 2
        self.mask = cell_count - 1
        cells = np.zeros(cell_count, np.uint64)
        at = np.zeros(self.spots + 1, _SPOT)  # one more: they begin where none lies in two cache lines
        touched = np.zeros(self.spots, np.int64)
        self.arrays = (cells, at, touched)
        self.cells = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>cells)
        self.at = <Spot *>((<uintptr_t>cnp.PyArray_DATA(<cnp.ndarray>at) + sizeof(Spot) - 1)
                           & ~<uintptr_t>(sizeof(Spot) - 1))
        self.touched = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>touched)
        self.batch = 0
        self.filled = 0
        self.hand = 0

    def plan(self, keys):
        """Where the rows of the next batch are, and which of them must be pulled.

        Parameters
        ----------
        keys : (n,) uint64
            Distinct.

        Returns
        -------
        spots : (n,) int32
            Of each key; -1 where it is not kept: all spots that were looked at have keys of this batch.
        missed : (m,) int32
            Places of the keys that must be pulled, rising.
        """
        keys = checked_array("plan: keys", keys, _U64, (None,))
        cdef int64_t n = len(keys), i, count = 0
        spots = np.empty(n, np.int32)
        missed = np.empty(n, np.int32)
        cdef const uint64_t *key = keys_of(keys)
        cdef int32_t *spot = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>spots)
        cdef int32_t *miss = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>missed)
        with nogil:
            self.batch += 1
            i = 0
            while i < n:  # first those that are here: a new key must not take their spots
                count += self.look_up(key + i, min(n - i, <int64_t>BLOCK), <int32_t>i, spot + i, miss + count)
                i += BLOCK
            i = 0
            while i < count:
                self.take(key, min(count - i, <int64_t>BLOCK), miss + i, spot)
                i += BLOCK
        return spots, missed[:count].copy()

    cdef int64_t look_up(self, const uint64_t *key, int64_t n, int32_t first, int32_t *spot,
                         int32_t *miss) noexcept nogil:
        """Spots of some keys, at most BLOCK, from place ``first`` on. Returns how many are missed."""
        cdef uint64_t mixed[BLOCK]
        cdef int64_t i, count = 0
        cdef uint64_t cell
        cdef int fresh
        for i in range(n):
            mixed[i] = pslib_mix64(key[i])
            PSLIB_PREFETCH(&self.cells[mixed[i] & self.mask])
        for i in range(n):
            cell = self.cells[mixed[i] & self.mask]
            if cell:
                PSLIB_PREFETCH(&self.at[spot_of(cell)])
                PSLIB_PREFETCH(&self.touched[spot_of(cell)])
        for i in range(n):
            spot[i] = self.find(key[i], mixed[i])
            if spot[i] >= 0:
                fresh = self.is_fresh(spot[i])
                self.touched[spot[i]] = self.batch
                if fresh:
                    continue
                self.at[spot[i]].pulled = self.batch
                self.at[spot[i]].repeated = 1
            miss[count] = first + <int32_t>i
            count += 1
        return count

    cdef int is_fresh(self, int32_t spot) noexcept nogil:
        cdef const Spot *at = &self.at[spot]
        cdef int64_t since_pull = self.batch - at.pulled
        if since_pull <= self.age:
            return True
        return at.repeated and self.batch - self.touched[spot] <= self.age and since_pull <= self.age * LIVES

    cdef int32_t find(self, uint64_t key, uint64_t mixed) noexcept nogil:
        cdef uint64_t at = mixed & self.mask, tag = mixed & TAG, cell
        while True:
            cell = self.cells[at]
            if not cell:
                return -1
            if cell >> 32 == tag and self.at[spot_of(cell)].key == key:
                return spot_of(cell)
            at = (at + 1) & self.mask

    cdef void take(
        self, const uint64_t *keys, int64_t n, const int32_t *missed, int32_t *spots,
    ) noexcept nogil:
        """Spots for those of at most BLOCK missed keys that have none; -1 when this batch uses all that were
        looked at."""
        cdef int64_t to[BLOCK]
        cdef uint64_t mixed[BLOCK]
        cdef uint64_t left[BLOCK]
        cdef int64_t i, filled = self.filled
        for i in range(n):
            to[i] = -1
            if spots[missed[i]] >= 0:
                continue
            to[i] = self.choose()
            if to[i] >= 0:
                self.touched[to[i]] = self.batch
                PSLIB_PREFETCH(&self.at[to[i]])
            spots[missed[i]] = <int32_t>to[i]
        for i in range(n):
            if to[i] < 0:
                continue
            mixed[i] = pslib_mix64(keys[missed[i]])
            PSLIB_PREFETCH(&self.cells[mixed[i] & self.mask])
            if to[i] < filled:
                left[i] = pslib_mix64(self.at[to[i]].key)
                PSLIB_PREFETCH(&self.cells[left[i] & self.mask])
        for i in range(n):
            if to[i] < 0:
                continue
            if to[i] < filled:
                self.remove(to[i], left[i])
            self.put(to[i], mixed[i])
            self.at[to[i]] = Spot(keys[missed[i]], self.batch, 0, 0)

    cdef int64_t choose(self) noexcept nogil:
        """A spot for a new key, of no key or of the oldest among the next SCAN; -1 when there is none."""
        if self.filled == self.spots:
            return self.oldest()
        self.filled += 1
        return self.filled - 1

    cdef int64_t oldest(self) noexcept nogil:
        """The one of the next SCAN spots to replace: none that this batch has touched, the last of all."""
        cdef int64_t best = -1, spot, earliest = self.batch, too_old = self.batch - self.age
        for _ in range(SCAN):
            spot = self.hand
            self.hand = spot + 1 if spot + 1 < self.spots else 0
            if self.touched[spot] < too_old:
                return spot
            if self.touched[spot] < earliest:
                earliest = self.touched[spot]
                best = spot
        return best

    cdef void put(self, int64_t spot, uint64_t mixed) noexcept nogil:
        cdef uint64_t at = mixed & self.mask
        while self.cells[at]:
            at = (at + 1) & self.mask
        self.cells[at] = mixed << 32 | <uint64_t>(spot + 1)

    cdef void remove(self, int64_t spot, uint64_t mixed) noexcept nogil:
        """Take a key out of the index; entries behind it that could stand earlier move back."""
        cdef uint64_t hole = mixed & self.mask, at, home
        while spot_of(self.cells[hole]) != spot:
            hole = (hole + 1) & self.mask
        at = hole
        while True:
            at = (at + 1) & self.mask
            if self.cells[at] == 0:
                break
            home = self.cells[at] >> 32 & self.mask
            if ((at - home) & self.mask) >= ((at - hole) & self.mask):
                self.cells[hole] = self.cells[at]
                hole = at
        self.cells[hole] = 0
