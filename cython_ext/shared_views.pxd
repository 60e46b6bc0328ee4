"""For frames of a socket of which some are in shared memory (``zmq_frames.pyx``)."""

from libc.stdint cimport int64_t


cdef class Told:
    cdef bytes token, lane
    cdef dict regions  # by number
    cdef double ended_s

    cdef size_t keep_taken(self) except? 0


cdef class SharedViews:
    cdef size_t frame_bytes_max
    cdef int64_t process  # its children have no regions
    cdef dict by_token, by_lane
    cdef list ended
    cdef double looks_s  # when to look around next

    cdef Told told_by(self, bytes token)
    cpdef list taken(self, bytes placard)
    cdef int look_around(self) except -1


cdef bint is_placard(object frame) noexcept
