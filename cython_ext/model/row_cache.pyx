"""Rows that a trainer has seen lately: which of a batch's keys need not be asked for.

Two streams of calls, each in the order of the batches, may run in two threads: `CachedKeys.plan` decides
(keys, spots and stamps), `RowCache.assemble` and `RowCache.step` move floats. What `plan` decides for a
batch holds when the floats of that batch move, because those of all earlier batches have moved before: so a
spot may be promised to another key while an earlier batch has yet to read it.

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

Rows are asked for some places before they are read. AMD Zen 4, 200,000 spots, 39,000 keys a batch, 1 + 16
floats: `assemble` takes 45 ns a key instead of 135, `step` 63 instead of 215.
"""

cimport cython
cimport numpy as cnp
from libc.math cimport INFINITY, sqrtf
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from cython_ext.model.cached_keys cimport PSLIB_PREFETCH, CachedKeys
from cython_ext.common.checks cimport (
    checked_array,
    checked_target,
    finite_number,
    floats_of,
    keys_of,
    whole_number,
)

import numpy as np

cnp.import_array()

__all__ = ["RowCache"]

cdef enum:
    PLAIN = 0
    ROWWISE = 2
    AHEAD = 8  # rows between the one that is asked for and the one that is worked on
    LINE_FLOATS = 16  # of a cache line
_BOOL = np.dtype(np.bool_)
_F32 = np.dtype(np.float32)
_I32 = np.dtype(np.int32)
_U64 = np.dtype(np.uint64)


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
        """A row as it came; and its sums: exact, as they are, or from how it has moved since it came last."""
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
