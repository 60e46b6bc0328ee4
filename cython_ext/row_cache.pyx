"""Rows that a trainer has seen lately: which of a batch's keys need not be asked for.

Two streams of calls, each in the order of the batches, may run in two threads: `RowCache.plan` decides
(keys, spots and stamps), `RowCache.assemble` and `RowCache.step` move floats. What `plan` decides for a
batch holds when the floats of that batch move, because those of all earlier batches have moved before: so a
spot may be promised to another key while an earlier batch has yet to read it.

A row is served from its spot in batch t

    if  t - pulled <= age                                          or
    if  t - touched <= age  and  t - pulled <= age * LIVES  and it has been pulled before in this spot

where ``pulled`` is the batch that asked a server for it last and ``touched`` the last batch that had it.
Gradients that this trainer pushes are written back into the copy, column by column, by a mirror of the
optimizer:

    plain     w = w - lr * g
    Adagrad   S = S + pushers * g^2;   w = w - lr * g / sqrt(S)       row-wise: the mean of g^2 over the part

S is exact, as long as a row stays in its spot, if the row was new when it came, which is seen from its
first value: it begins at the optimizer's initial sum. Of other rows it is infinite (no step) until they
have been pulled twice; then, with G the sum of the gradients between the two pulls and ``base`` the row at
the first,

    rate = (base - w) . G / (G . G)   for each part;     S = (lr / rate)^2, infinite unless rate > 0

the sum that explains best (least squares) how the row has moved. No step is longer than lr a column. Dead
end: steps of ``rate * g`` without S make a model diverge when a row whose gradients were tiny gets a large
one.

The index is a table of at least twice as many cells as spots, probed linearly, with 1-based spots as cells;
removal moves later entries back, so there are no tombstones. A new key takes a free spot, else the first of
the next SCAN spots that no later batch can be served from, else the one among them that was touched longest
ago.
"""

cimport cython
cimport numpy as cnp
from libc.math cimport INFINITY, sqrtf
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cython_ext.checks cimport checked_array, checked_target, finite_number, floats_of, keys_of, whole_number
from cython_ext.hashing cimport pslib_mix64

import numpy as np

cnp.import_array()

__all__ = ["RowCache"]

cdef enum:
    PLAIN = 0
    ROWWISE = 2
    SCAN = 32  # spots looked at for one to replace
    LIVES = 8  # how many ages a row may be served that is written back, before it is pulled anew
SPOTS_MAX = 1 << 28
_BOOL = np.dtype(np.bool_)
_F32 = np.dtype(np.float32)
_I32 = np.dtype(np.int32)
_U64 = np.dtype(np.uint64)


@cython.final
cdef class RowCache:
    """At most ``spots`` rows, served for ``age`` batches.

    Parameters
    ----------
    spots : int
        1..2^28. One takes 16 bytes a float and some 50 more.
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

    cdef readonly int64_t spots, dim, batch, filled
    cdef public int64_t age
    cdef object arrays  # keeps alive what the pointers below point into
    cdef uint64_t mask
    cdef int64_t hand
    cdef uint32_t *cells
    cdef uint64_t *keys
    cdef uint64_t *owners  # as `keys`, when the floats have followed
    cdef int64_t *pulled
    cdef int64_t *touched
    cdef float *rows
    cdef float *base
    cdef float *moved
    cdef float *sums
    cdef float *learning_rates
    cdef float *first_sums
    cdef int32_t *modes
    cdef float pushers
    cdef int32_t *ends
    cdef int32_t *repeated
    cdef int64_t part_count

    def __init__(self, spots, parts, learning_rates, modes, first_sums, pushers, age):
        self.spots = whole_number("RowCache: spots", spots, 1, SPOTS_MAX)
        self.age = whole_number("RowCache: age", age, 1, 1 << 31)
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
        cell_count = 16
        while cell_count < 2 * self.spots:
            cell_count *= 2
        self.mask = cell_count - 1
        cells = np.zeros(cell_count, np.uint32)
        keys = np.zeros((2, self.spots), np.uint64)
        stamps = np.zeros((2, self.spots), np.int64)
        repeated = np.zeros(self.spots, np.int32)
        floats = np.zeros((4, self.spots, self.dim), np.float32)
        floats[3] = np.inf  # sums of no row
        self.arrays = (ends, own, kinds, cells, keys, stamps, repeated, floats)
        self.ends = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>ends)
        self.cells = <uint32_t *>cnp.PyArray_DATA(<cnp.ndarray>cells)
        self.keys = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>keys)
        self.owners = self.keys + self.spots
        self.pulled = <int64_t *>cnp.PyArray_DATA(<cnp.ndarray>stamps)
        self.touched = self.pulled + self.spots
        self.repeated = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>repeated)
        self.rows = <float *>cnp.PyArray_DATA(<cnp.ndarray>floats)
        self.base = self.rows + self.spots * self.dim
        self.moved = self.base + self.spots * self.dim
        self.sums = self.moved + self.spots * self.dim
        self.learning_rates = <float *>cnp.PyArray_DATA(<cnp.ndarray>own)
        self.first_sums = self.learning_rates + self.part_count
        self.modes = <int32_t *>cnp.PyArray_DATA(<cnp.ndarray>kinds)
        self.batch = 0
        self.filled = 0
        self.hand = 0

    # --- keys: one thread ---------------------------------------------------------------------------------

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
            for i in range(n):  # first those that are here: a new key must not take their spots
                spot[i] = self.find(key[i])
                if spot[i] >= 0 and self.is_fresh(spot[i]):
                    self.touched[spot[i]] = self.batch
                    continue
                if spot[i] >= 0:
                    self.touched[spot[i]] = self.batch
                    self.pulled[spot[i]] = self.batch
                    self.repeated[spot[i]] = 1
                miss[count] = <int32_t>i
                count += 1
            for i in range(count):
                if spot[miss[i]] < 0:
                    spot[miss[i]] = self.take(key[miss[i]])
        return spots, missed[:count].copy()

    cdef int is_fresh(self, int32_t spot) noexcept nogil:
        cdef int64_t since_pull = self.batch - self.pulled[spot]
        if since_pull <= self.age:
            return True
        return (
            self.repeated[spot]
            and self.batch - self.touched[spot] <= self.age
            and since_pull <= self.age * LIVES
        )

    cdef int32_t find(self, uint64_t key) noexcept nogil:
        cdef uint64_t at = pslib_mix64(key) & self.mask
        while self.cells[at]:
            if self.keys[self.cells[at] - 1] == key:
                return <int32_t>(self.cells[at] - 1)
            at = (at + 1) & self.mask
        return -1

    cdef int32_t take(self, uint64_t key) noexcept nogil:
        """A spot for a new key; -1 when there is none that this batch does not use."""
        cdef int64_t spot = self.filled
        cdef uint64_t at
        if self.filled < self.spots:
            self.filled += 1
        else:
            spot = self.oldest()
            if spot < 0:
                return -1
            self.remove(spot)
        self.keys[spot] = key
        self.pulled[spot] = self.batch
        self.touched[spot] = self.batch
        self.repeated[spot] = 0
        at = pslib_mix64(key) & self.mask
        while self.cells[at]:
            at = (at + 1) & self.mask
        self.cells[at] = <uint32_t>(spot + 1)
        return <int32_t>spot

    cdef int64_t oldest(self) noexcept nogil:
        """The spot to replace, among the next SCAN."""
        cdef int64_t best = -1, spot
        for _ in range(SCAN):
            spot = self.hand
            self.hand = spot + 1 if spot + 1 < self.spots else 0
            if self.touched[spot] == self.batch:
                continue
            if best < 0 or self.touched[spot] < self.touched[best]:
                best = spot
            if self.batch - self.touched[spot] > self.age:
                return spot
        return best

    cdef void remove(self, int64_t spot) noexcept nogil:
        """Take a key out of the index; entries behind it that could stand earlier move back."""
        cdef uint64_t hole = pslib_mix64(self.keys[spot]) & self.mask, at, home
        while self.cells[hole] != <uint32_t>(spot + 1):
            hole = (hole + 1) & self.mask
        at = hole
        while True:
            at = (at + 1) & self.mask
            if self.cells[at] == 0:
                break
            home = pslib_mix64(self.keys[self.cells[at] - 1]) & self.mask
            if ((at - home) & self.mask) >= ((at - hole) & self.mask):
                self.cells[hole] = self.cells[at]
                hole = at
        self.cells[hole] = 0

    # --- floats: one thread -------------------------------------------------------------------------------

    def assemble(self, keys, spots, missed, pulled, new, out):
        """The rows of a batch: those that are here, and those that came, which are kept from now on.

        Parameters
        ----------
        keys, spots, missed
            What `plan` was given, and gave, for this batch.
        pulled : (m, dim) float32
            Rows of the missed keys.
        new : (m,) bool
            Whether each of them is as it was made.
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
                if j < m and miss[j] == i:
                    memcpy(target + i * self.dim, came + j * self.dim, size)
                    j += 1
                elif spot[i] >= 0:
                    memcpy(target + i * self.dim, self.rows + spot[i] * self.dim, size)
                else:
                    sound = False
            sound &= j == m
            if sound:
                for j in range(m):
                    if spot[miss[j]] >= 0:
                        self.keep(key[miss[j]], spot[miss[j]], came + j * self.dim, is_new[j])
        if not sound:
            raise ValueError("assemble: expected the spots and places that plan gave for this batch")

    cdef void keep(self, uint64_t key, int64_t spot, const float *row, bint is_new) noexcept nogil:
        """A row as it came; and its sums: exact, as they are, or from how it has moved since it came last."""
        cdef float *base = self.base + spot * self.dim
        cdef float *moved = self.moved + spot * self.dim
        cdef float *sums = self.sums + spot * self.dim
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
        memcpy(self.rows + spot * self.dim, row, size)
        memcpy(base, row, size)
        memset(moved, 0, size)

    cdef float sum_of(self, int64_t part, int64_t first, const float *base, const float *moved,
                      const float *row) noexcept nogil:
        """(lr / rate)^2 of one part."""
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
        """Write the gradients of a batch back into the copies of its rows.

        Parameters
        ----------
        spots
            From `plan`, of the batch that was assembled last.
        gradients : (n, dim) float32
        rate : float
            Times the learning rates.
        """
        spots = self.checked_spots("step", spots)
        gradients = checked_array("step: gradients", gradients, _F32, (len(spots), self.dim))
        cdef float times = finite_number("step: rate", rate)
        cdef int64_t n = len(spots), i
        cdef const int32_t *spot = <const int32_t *>cnp.PyArray_DATA(<cnp.ndarray>spots)
        cdef const float *gradient = floats_of(gradients)
        with nogil:
            for i in range(n):
                if spot[i] >= 0:
                    self.step_row(spot[i], gradient + i * self.dim, times)

    cdef void step_row(self, int64_t spot, const float *gradient, float times) noexcept nogil:
        cdef float *row = self.rows + spot * self.dim
        cdef float *moved = self.moved + spot * self.dim
        cdef float *sums = self.sums + spot * self.dim
        cdef int64_t part, j, first = 0
        cdef float lr, mean
        for part in range(self.part_count):
            lr = self.learning_rates[part] * times
            mean = 0
            if self.modes[part] == ROWWISE:
                for j in range(first, self.ends[part]):
                    mean += gradient[j] * gradient[j]
                mean /= <float>(self.ends[part] - first)
            for j in range(first, self.ends[part]):
                moved[j] += gradient[j]
                if self.modes[part] == PLAIN:
                    row[j] -= lr * gradient[j]
                    continue
                sums[j] += self.pushers * (mean if self.modes[part] == ROWWISE else gradient[j] * gradient[j])
                if sums[j] > 0:
                    row[j] -= lr * gradient[j] / sqrtf(sums[j])
            first = self.ends[part]

    cdef object checked_spots(self, str where, object spots):
        spots = checked_array(f"{where}: spots", spots, _I32, (None,))
        if len(spots) and not (-1 <= spots.min() and spots.max() < self.spots):
            raise ValueError(f"{where}: spots: expected -1..{self.spots - 1}")
        return spots
