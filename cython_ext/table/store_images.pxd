"""Images of a Store at an instant, for the class that is made of it."""

from cython_ext.table.store_policies cimport StorePolicies


cdef class StoreImages(StorePolicies):
    cdef int _require_image(self, str method) except -1
    cdef object _range(self, str method, object first, object stop)
