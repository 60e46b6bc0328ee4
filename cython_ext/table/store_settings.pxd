"""Settings of a Store, and errors of a full one."""

from libc.stdint cimport int64_t

from cython_ext.table.table cimport PslibRecord, PslibStatus, PslibTable


cdef int chosen_level() except -1
cdef list set_part(PslibTable *table, int place, object numbers)
cdef int set_policies(PslibTable *table, int narrow_parts, object storage, object counters, object admission,
                      object promotion, object score) except -1
cdef int raise_unless_done(str method, PslibStatus status, int64_t done, int64_t n) except -1
cdef tuple counts_into(PslibRecord *record, str method, object shows, object clicks, object n)
