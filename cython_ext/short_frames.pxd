"""A short call, its parts, and their bytes."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from cython_ext.msgpack_parts cimport In

cdef class ShortCall

cdef class ShortPart:
    cdef ShortCall call
    cdef object peer
    cdef int64_t first, count  # in the order of the call
    cdef uint64_t cost
    cdef double pause_s  # before it is asked again
    cdef int server
    cdef bint by_lane

cdef class ShortCall:
    cdef readonly object owner, number, table, memory, named
    cdef readonly double sent_s, next_try_s, deadline_s
    cdef readonly Py_ssize_t open
    cdef object kept  # arrays
    cdef bytes name
    cdef uint64_t first_id, parts  # request_ids of all its parts, and how many there are
    cdef uint64_t step
    cdef uint64_t names[5]
    cdef double time_s
    cdef const uint64_t *keys
    cdef const int32_t *order
    cdef const int64_t *starts
    cdef float *rows
    cdef int64_t servers, dim

    cdef int64_t place(self, int64_t at) noexcept

cdef bytes part_frame(bytes head, ShortPart part, uint64_t request_id)
cdef bint take_rows(In *source, ShortPart part, uint64_t *pushes_before) noexcept
cdef bint take_applied(In *source, uint64_t *pushes_before) noexcept
