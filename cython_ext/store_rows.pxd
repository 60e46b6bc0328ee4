"""Rows of a Store by key and by partition."""

from cython_ext.store_memory cimport StoreMemory


cdef class StoreRows(StoreMemory):
    cdef int _assign(self, str method, object keys, object weights, object state, int row_class) except -1
