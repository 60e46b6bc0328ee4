"""The C side of a Store, for modules that work on its table (images)."""

from cython_ext.table.table cimport PslibTable


cdef class Store:
    cdef PslibTable table
    cdef list borrowed  # arrays that `table` points into
    cdef readonly int partition_bits
    cdef readonly int narrow_parts
