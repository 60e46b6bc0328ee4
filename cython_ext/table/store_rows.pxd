"""Rows of a Store by key and by partition."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from cython_ext.table.store_memory cimport StoreMemory
from cython_ext.table.table cimport PslibRecord


cdef tuple counts_into(PslibRecord *record, str method, object shows, object clicks, object n)


cdef class StoreRows(StoreMemory):
    cdef int refuse_strangers(self, str method, uint32_t partition, object keys) except -1
    cdef int _assign(self, str method, object keys, object weights, object state, int row_class) except -1
    cdef int64_t read_rows(self, const uint64_t *keys, int64_t n, float now, float *rows) except -1
    cdef int step_rows(
        self, const uint64_t *keys, int64_t n, const float *gradients, uint64_t salt, float now
    ) except -1
    cdef int _step(
        self, const uint64_t *keys, int64_t n, const float *gradients, int row_class,
        const PslibRecord *record, float rate, bint delta
    ) except -1
