"""For the cache of rows, whose floats lie in the same spots (``row_cache.pyx``)."""

from libc.stdint cimport int32_t, int64_t, uint64_t


cdef extern from "common/prefetch.h" nogil:
    void PSLIB_PREFETCH(const void *address)


cdef struct Spot:  # _SPOT in cached_keys.pyx
    uint64_t key
    int64_t pulled
    int64_t repeated
    int64_t room  # so that none lies in two cache lines


cdef class CachedKeys:
    cdef readonly int64_t spots, batch, filled
    cdef public int64_t age
    cdef object arrays  # keeps alive what the pointers below point into
    cdef uint64_t mask
    cdef int64_t hand
    cdef uint64_t *cells  # 0: empty; else the low half of the mixed key, above the spot + 1
    cdef Spot *at
    cdef int64_t *touched  # apart: those of SCAN spots are looked at together

    cdef int64_t look_up(
        self, const uint64_t *key, int64_t n, int32_t first, int32_t *spot, int32_t *miss,
    ) noexcept nogil
    cdef int is_fresh(self, int32_t spot) noexcept nogil
    cdef int32_t find(self, uint64_t key, uint64_t mixed) noexcept nogil
    cdef void take(
        self, const uint64_t *keys, int64_t n, const int32_t *missed, int32_t *spots,
    ) noexcept nogil
    cdef int64_t choose(self) noexcept nogil
    cdef int64_t oldest(self) noexcept nogil
    cdef void put(self, int64_t spot, uint64_t mixed) noexcept nogil
    cdef void remove(self, int64_t spot, uint64_t mixed) noexcept nogil
