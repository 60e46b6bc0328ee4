"""For frames of a socket of which some are in shared memory (``zmq_frames.pyx``)."""

from libc.stdint cimport int64_t, uint64_t


cdef class Region:
    cdef unsigned char *memory
    cdef size_t size
    cdef uint64_t number, used  # when: by the count of messages of its end
    cdef int64_t process  # that has mapped it; others that it has forked must not say that it is free


cdef class Shelf:
    cdef bytes token, lane
    cdef list mine
    cdef dict theirs
    cdef uint64_t made, laid


cdef class SharedFrames:
    cdef object lanes
    cdef size_t frame_bytes_max
    cdef dict shelves, by_lane, by_key
    cdef Region last

    cdef Shelf put_up(self, bytes token, bytes lane)
    cpdef bytes lay(self, key, list frames)
    cdef Region room(self, Shelf shelf, size_t size)
    cdef Region make(self, Shelf shelf, size_t size)
    cdef int forget(self, Shelf shelf, Region region) except -1
    cpdef list taken(self, object sender, bytes placard)


cdef bint is_placard(object frame) noexcept
