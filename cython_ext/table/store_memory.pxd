"""What one Store holds, for the classes that work on it."""

from libc.stdint cimport int64_t

from cython_ext.table.table cimport PslibStatus, PslibTable


cdef int raise_unless_done(str method, PslibStatus status, int64_t done, int64_t n) except -1


cdef class StoreMemory:
    cdef PslibTable table
    cdef list borrowed  # arrays that `table` points into
    cdef readonly int partition_bits
    cdef readonly int narrow_parts

    cdef int _set_part(self, int place, object numbers) except -1
    cdef int _set_policies(self, object storage, object counters, object admission, object promotion,
                           object score) except -1
    cdef int class_of(self, str method, object narrow) except -1
    cdef object partition_number(self, str method, object partition)
