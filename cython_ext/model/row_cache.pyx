"""Cache of rows that a trainer pulled lately, so that their keys need not be pulled for every batch.

Two streams of calls, each in the order of the batches, may run in two threads: `CachedKeys.plan` decides
(keys, spots and stamps), `RowCache.assemble` and `RowCache.step` move floats. A plan is valid when the floats
of its batch move, because those of all earlier batches have moved before: so a spot may be assigned to
another key while an earlier batch has yet to read it.

A row is served from its spot in batch t

    if  t - pulled <= age                                          or
    if  t - touched <= age  and  t - pulled <= age * LIVES  and it has been pulled before in this spot

where ``pulled`` is the last batch that pulled it from a server and ``touched`` the last batch that had it.

The index is a table of at least twice as many cells as spots, probed linearly; a cell has half of the mixed
key and the spot. Removal moves later entries back, so there are no tombstones. A new key takes a free spot,
else the first of the next SCAN spots that no later batch can be served from, else the one among them that
was touched longest ago.

Gradients that this trainer pushes are applied to the cached copy, column by column, by a mirror of the
optimizer:

    plain     w = w - lr * g
    Adagrad   S = S + pushers * g^2;   w = w - lr * g / sqrt(S)       row-wise: the mean of g^2 over the part

S is exact, as long as a row stays in its spot, if the row was new when it was pulled, which its initial value
shows: it begins at the optimizer's initial sum. Of other rows it is infinite (no step) until they have been
pulled twice; then, with G the sum of the gradients between the two pulls and ``base`` the row at the first,

    rate = (base - w) . G / (G . G)   for each part;     S = (lr / rate)^2, infinite unless rate > 0

the least-squares estimate from the movement of the row. No step is longer than lr a column. Tried and
rejected: steps of ``rate * g`` without S make a model diverge when a row whose gradients were tiny gets a
large one.

The time is memory latency, so keys go in blocks and rows are prefetched some places ahead. AMD Zen 4, 200,000
spots, 39,000 keys a batch of 1 + 16 floats, 24,000 missed, ns a key without prefetch and with it: `plan` 182
and 100, `assemble` 135 and 45, `step` 215 and 63.
"""

cimport cython
cimport numpy as cnp
from libc.math cimport INFINITY, sqrtf
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from cython_ext.common.checks cimport (
    checked_array,
    checked_target,
    finite_number,
    floats_of,
    keys_of,
    whole_number,
)
from cython_ext.common.hashing cimport pslib_mix64

import numpy as np

cnp.import_array()

__all__ = ["CachedKeys", "RowCache"]

cdef extern from "common/vectors.h" nogil:
    void PSLIB_PREFETCH(const void *address)

cdef enum:
    SCAN = 32  # spots compared to find one to replace
    LIVES = 8  # ages that a row with applied gradients may be served before it is pulled again
    BLOCK = 64  # keys whose cells and spots are prefetched together
    TAG = 0xFFFFFFFF  # half a cell
    PLAIN = 0
    ROWWISE = 2
    AHEAD = 8  # rows between the prefetch and the use of a row
    LINE_FLOATS = 16  # of a cache line
SPOTS_MAX = 1 << 28  # so that a spot fits in half a cell
_SPOT = np.dtype([("key", np.uint64), ("pulled", np.int64), ("repeated", np.int64), ("unused", np.int64)])
_BOOL = np.dtype(np.bool_)
_F32 = np.dtype(np.float32)
_I32 = np.dtype(np.int32)
_U64 = np.dtype(np.uint64)


cdef struct Spot:  # _SPOT
    uint64_t key
    int64_t pulled
    int64_t repeated
    int64_t unused  # so that no Spot lies in two cache lines


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

    cdef readonly int64_t spots, batch, filled
    cdef public int64_t age
    cdef object arrays  # keeps alive the memory that the pointers below point into
    cdef uint64_t mask
    cdef int64_t hand
    cdef uint64_t *cells  # 0: empty; else the low half of the mixed key, above the spot + 1
    cdef Spot *at
    cdef int64_t *touched  # a separate array: those of SCAN spots are read together

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
        """Find the cached rows of the next batch, and the keys that must be pulled.

        Parameters
        ----------
        keys : (n,) uint64
            Distinct.

        Returns
        -------
        spots : (n,) int32
            Of each key; -1 where it is not cached: all spots that were compared have keys of this batch.
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
            while i < n:  # first the cached keys: a new key must not take their spots
                count += self.look_up(key + i, min(n - i, <int64_t>BLOCK), <int32_t>i, spot + i, miss + count)
                i += BLOCK
            i = 0
            while i < count:
                self.take(key, min(count - i, <int64_t>BLOCK), miss + i, spot)
                i += BLOCK
        return spots, missed[:count].copy()

    cdef int64_t look_up(self, const uint64_t *key, int64_t n, int32_t first, int32_t *spot,
                         int32_t *miss) noexcept nogil:
        """Find the spots of at most BLOCK keys, from place ``first`` on; return the number of missed keys."""
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
        """Assign spots to those of at most BLOCK missed keys that have none; -1 when there is none."""
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
        """Return a spot for a new key, free or the oldest of the next SCAN; -1 when there is none."""
        if self.filled == self.spots:
            return self.oldest()
        self.filled += 1
        return self.filled - 1

    cdef int64_t oldest(self) noexcept nogil:
        """Return the spot to replace of the next SCAN, not touched by this batch; -1 when there is none."""
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
        """Remove a key from the index; later entries of its probe sequence move back."""
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


cdef inline void step_rowwise(float *row, float *sums, const float *gradient, int64_t count, float pushers,
                              float lr) noexcept nogil:
    """Of the mean of g^2; all sums of the part are alike."""
    cdef float mean = 0, root
    cdef int64_t j
    for j in range(count):
        mean += gradient[j] * gradient[j]
    mean /= <float>count
    for j in range(count):
        sums[j] += pushers * mean
    if sums[0] > 0:
        root = sqrtf(sums[0])
        for j in range(count):
            row[j] -= lr * gradient[j] / root


cdef inline void step_adagrad(float *row, float *sums, const float *gradient, int64_t count, float pushers,
                              float lr) noexcept nogil:
    cdef int64_t j
    cdef bint steps
    for j in range(count):  # where S is 0 or no number: row - 0 / 1
        sums[j] += pushers * (gradient[j] * gradient[j])
        steps = sums[j] > 0
        row[j] -= (lr * gradient[j] if steps else <float>0) / sqrtf(sums[j] if steps else <float>1)


cdef inline void prefetch_floats(const float *start, int64_t count) noexcept nogil:
    cdef int64_t i = 0
    while i < count:
        PSLIB_PREFETCH(start + i)
        i += LINE_FLOATS
    PSLIB_PREFETCH(start + count - 1)


@cython.final
cdef class RowCache(CachedKeys):
    """At most ``spots`` rows, served for ``age`` batches.

    Parameters
    ----------
    spots : int
        1..2^28. One takes 16 bytes a float and 64 to 80 more.
    parts : sequence of int
        Floats of each part of a row.
    learning_rates : sequence of float
        Of each part's optimizer.
    modes : sequence of {0, 1, 2}
        Of each part: plain, Adagrad, row-wise Adagrad.
    first_sums : sequence of float
        S of each part in a new row.
    pushers : int
        How many trainers push; the others' gradients count as this one's.
    age : int
        In batches, at least 1; `RowCache.age` may be changed between batches.
    """

    cdef readonly int64_t dim
    cdef object own_arrays  # keeps alive what the pointers below point into
    cdef uint64_t *owners  # keys of the spots, when the floats have followed
    cdef float *floats  # of each spot dim each: the row, moved, sums, base
    cdef float *learning_rates
    cdef float *first_sums
    cdef int32_t *modes
    cdef float pushers
    cdef int32_t *ends
    cdef int64_t part_count

    def __init__(self, spots, parts, learning_rates, modes, first_sums, pushers, age):
        super().__init__(spots, age)
        self.part_count = len(parts)
        self.pushers = whole_number("RowCache: pushers", pushers, 1, 1 << 20)
        if not len(learning_rates) == len(modes) == len(first_sums) == self.part_count:
            raise ValueError(f"RowCache: expected learning rates, modes and sums of {self.part_count} parts")
        own = np.array([learning_rates, first_sums], np.float32)
        if not np.isfinite(own).all() or (own < 0).any():
            raise ValueError(f"RowCache: expected finite rates and sums >= 0, got {own.tolist()}")
        kinds = np.array([whole_number("RowCache: mode", mode, 0, 2) for mode in modes], np.int32)
        ends = np.cumsum([whole_number("RowCache: part", part, 1, 1 << 20) for part in parts], dtype=np.int32)
        if not len(ends):
            raise ValueError("RowCache: expected at least one part, got none")
        self.dim = ends[len(ends) - 1]
        owners = np.zeros(self.spots, np.uint64)
        floats = np.zeros((self.spots, 4, self.dim), np.float32)
        floats[:, 2] = np.inf  # sums of no row
        self.own_arrays = (ends, own, kinds, owners, floats)
        self.ends = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>ends)
        self.owners = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>owners)
        self.floats = <float *>cnp.PyArray_DATA(<cnp.ndarray>floats)
        self.learning_rates = <float *>cnp.PyArray_DATA(<cnp.ndarray>own)
        self.first_sums = self.learning_rates + self.part_count
        self.modes = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>kinds)

    def assemble(self, keys, spots, missed, pulled, new, out):
        """Copy the rows of a batch, from the cache and from the pulled rows, and cache the latter.

        Parameters
        ----------
        keys, spots, missed
            Argument and results of `plan` for this batch.
        pulled : (m, dim) float32
            Rows of the missed keys.
        new : (m,) bool
            True for rows that were never stepped.
        out : (n, dim) float32, written to

        Raises
        ------
        ValueError
            When an array has another type or shape, or a spot or place is out of range.
        """
        spots = self.checked_spots("assemble", spots)
        keys = checked_array("assemble: keys", keys, _U64, (len(spots),))
        missed = checked_array("assemble: missed", missed, _I32, (None,))
        pulled = checked_array("assemble: pulled", pulled, _F32, (len(missed), self.dim))
        new = checked_array("assemble: new", new, _BOOL, (len(missed),))
        out = checked_target("assemble: out", out, _F32, (len(spots), self.dim))
        if len(missed) and not (0 <= missed[0] and missed[len(missed) - 1] < len(spots)):
            raise ValueError(f"assemble: missed: expected places in 0..{len(spots) - 1}")
        cdef int64_t n = len(spots), m = len(missed), i, j = 0, size = self.dim * sizeof(float)
        cdef const int32_t *spot = <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>spots)
        cdef const int32_t *miss = <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>missed)
        cdef const uint64_t *key = keys_of(keys)
        cdef const float *came = floats_of(pulled)
        cdef const uint8_t *is_new = <const uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>new)
        cdef float *target = floats_of(out)
        cdef bint sound = True
        with nogil:
            for i in range(n):  # all are read before any is overwritten
                if i + AHEAD < n and spot[i + AHEAD] >= 0:
                    prefetch_floats(self.floats + spot[i + AHEAD] * 4 * self.dim, self.dim)
                if j < m and miss[j] == i:
                    memcpy(target + i * self.dim, came + j * self.dim, size)
                    j += 1
                elif spot[i] >= 0:
                    memcpy(target + i * self.dim, self.floats + spot[i] * 4 * self.dim, size)
                else:
                    sound = False
            sound &= j == m
            if sound:
                for j in range(m):
                    if j + AHEAD < m and spot[miss[j + AHEAD]] >= 0:
                        prefetch_floats(self.floats + spot[miss[j + AHEAD]] * 4 * self.dim, 4 * self.dim)
                        PSLIB_PREFETCH(&self.owners[spot[miss[j + AHEAD]]])
                    if spot[miss[j]] >= 0:
                        self.keep(key[miss[j]], spot[miss[j]], came + j * self.dim, is_new[j])
        if not sound:
            raise ValueError("assemble: expected the spots and places that plan gave for this batch")

    cdef void keep(self, uint64_t key, int64_t spot, const float *row, bint is_new) noexcept nogil:
        """Cache a pulled row, and set its sums: exact, unchanged, or estimated from the last two pulls."""
        cdef float *kept = self.floats + spot * 4 * self.dim
        cdef float *moved = kept + self.dim
        cdef float *sums = moved + self.dim
        cdef float *base = sums + self.dim
        cdef int64_t part, j, first = 0, size = self.dim * sizeof(float)
        cdef bint same = self.owners[spot] == key
        cdef float sum_now
        for part in range(self.part_count):
            if is_new or not same or sums[first] == INFINITY:
                sum_now = self.first_sums[part]
                if not is_new:
                    sum_now = self.sum_of(part, first, base, moved, row) if same else INFINITY
                for j in range(first, self.ends[part]):
                    sums[j] = sum_now
            first = self.ends[part]
        self.owners[spot] = key
        memcpy(kept, row, size)
        memcpy(base, row, size)
        memset(moved, 0, size)

    cdef float sum_of(self, int64_t part, int64_t first, const float *base, const float *moved,
                      const float *row) noexcept nogil:
        """Return the estimate (lr / rate)^2 of the sum of one part."""
        cdef float along = 0, square = 0, root
        cdef int64_t j
        for j in range(first, self.ends[part]):
            along += (base[j] - row[j]) * moved[j]
            square += moved[j] * moved[j]
        if not along > 0:
            return INFINITY
        root = self.learning_rates[part] * square / along
        return root * root

    def step(self, spots, gradients, rate=1.0):
        """Apply the gradients of a batch to the cached copies of its rows.

        Parameters
        ----------
        spots
            From `plan`, of the batch that was assembled last.
        gradients : (n, dim) float32
        rate : float
            Factor of the learning rates.
        """
        spots = self.checked_spots("step", spots)
        gradients = checked_array("step: gradients", gradients, _F32, (len(spots), self.dim))
        cdef float times = finite_number("step: rate", rate)
        cdef int64_t n = len(spots), i
        cdef const int32_t *spot = <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>spots)
        cdef const float *gradient = floats_of(gradients)
        with nogil:
            for i in range(n):
                if i + AHEAD < n and spot[i + AHEAD] >= 0:
                    prefetch_floats(self.floats + spot[i + AHEAD] * 4 * self.dim, 3 * self.dim)
                if spot[i] >= 0:
                    self.step_row(spot[i], gradient + i * self.dim, times)

    cdef void step_row(self, int64_t spot, const float *gradient, float times) noexcept nogil:
        cdef float *row = self.floats + spot * 4 * self.dim
        cdef float *moved = row + self.dim
        cdef float *sums = moved + self.dim
        cdef int64_t part, j, first = 0, count
        for part in range(self.part_count):
            count = self.ends[part] - first
            for j in range(first, first + count):
                moved[j] += gradient[j]
            if self.modes[part] == PLAIN:
                for j in range(first, first + count):
                    row[j] -= self.learning_rates[part] * times * gradient[j]
            elif self.modes[part] == ROWWISE:
                step_rowwise(row + first, sums + first, gradient + first, count, self.pushers,
                             self.learning_rates[part] * times)
            else:
                step_adagrad(row + first, sums + first, gradient + first, count, self.pushers,
                             self.learning_rates[part] * times)
            first = self.ends[part]

    cdef object checked_spots(self, str where, object spots):
        spots = checked_array(f"{where}: spots", spots, _I32, (None,))
        if len(spots) and not (-1 <= spots.min() and spots.max() < self.spots):
            raise ValueError(f"{where}: spots: expected -1..{self.spots - 1}")
        return spots
