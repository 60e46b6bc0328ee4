"""For frames of a socket of which some are in shared memory (``zmq_frames.pyx``)."""

from libc.stdint cimport int64_t, uint64_t


cdef class Region:
    cdef unsigned char *memory
    cdef size_t size
    cdef uint64_t number
    cdef double used_s
    cdef int64_t process  # that has mapped it; others that it has forked must not say that it is free


cdef class Shelf:
    cdef bytes token, lane
    cdef list mine
    cdef dict theirs
    cdef uint64_t made
    cdef double ended_s

    cdef size_t keep_taken(self) except? 0


cdef class Held:
    cdef Region region


cdef class SharedFrames:
    cdef object lanes
    cdef size_t frame_bytes_max, made_bytes
    cdef int64_t process  # its children have no regions
    cdef dict shelves, by_lane, by_peer
    cdef list ended
    cdef Region last  # laid, and not known to be on its way
    cdef double looks_s, full_s  # when to look around next; until then nothing was to be given up

    cdef Shelf put_up(self, bytes token, bytes lane)
    cdef Shelf shelf_of(self, bytes token)
    cdef int bound_ended(self) except -1
    cpdef bytes lay(self, peer, list frames)
    cpdef int settle(self, bint is_sent) except -1
    cdef Region room(self, Shelf shelf, size_t size)
    cdef Region make(self, Shelf shelf, size_t size)
    cpdef int trim(self, double idle_s) except -1
    cdef int look_around(self) except -1
    cpdef list taken(self, bytes placard)


cdef bint is_placard(object frame) noexcept
