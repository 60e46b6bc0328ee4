"""Rows of a Store by key and by partition."""

from libc.stdint cimport uint32_t

from cython_ext.store_memory cimport StoreMemory


cdef class StoreRows(StoreMemory):
    cdef int refuse_strangers(self, str method, uint32_t partition, object keys) except -1
    cdef int _assign(self, str method, object keys, object weights, object state, int row_class) except -1
