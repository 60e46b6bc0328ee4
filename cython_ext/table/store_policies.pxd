"""Which keys of a Store get rows and which rows leave."""

from cython_ext.table.store_rows cimport StoreRows


cdef class StorePolicies(StoreRows):
    cdef object _chosen(self, str method, object partitions)
    cdef int _require(self, str method, int rule) except -1
