"""For the other end of shared memory (``shared_views.pyx``), and a socket's frames (``zmq_frames.pyx``)."""

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    HEAD = 64  # bytes before the first frame of a region, and what each frame begins at a multiple of
    TOKEN_BYTES = 8
    IDLE_S = 5  # without a message a region is given up; so long one is waited for behind the end of its lane
    LOOKS_S = 1  # how often that is looked at


cdef class Region:
    cdef unsigned char *memory
    cdef size_t size
    cdef uint64_t number
    cdef double used_s
    cdef int64_t process  # that has mapped it; others that it has forked must not say that it is free


cdef class Shelf:
    cdef bytes token, lane
    cdef list regions
    cdef uint64_t made

    cdef bytes packet(self, uint64_t number, uint64_t size)


cdef class SharedFrames:
    cdef object lanes
    cdef size_t frame_bytes_max
    cdef int64_t process  # its children have no regions
    cdef dict shelves  # by peer
    cdef readonly long long given_way
    cdef Region last  # laid, and not known to be on its way
    cdef double looks_s, full_s  # when to look around next; until then nothing was to be given up

    cpdef bytes lay(self, peer, list frames)
    cpdef int settle(self, bint is_sent) except -1
    cdef Region room(self, Shelf shelf, size_t size)
    cdef Region make(self, Shelf shelf, size_t size)
    cpdef int trim(self, double idle_s) except -1
    cdef int look_around(self) except -1


cdef Region mapped(int fd, uint64_t number, size_t size)
cdef int close_file(int fd) noexcept
cdef int64_t here() noexcept
cdef bint is_free(Region region) noexcept
cdef int mark_free(Region region) noexcept
cdef bytes word(uint64_t number)
cdef uint64_t number_at(bytes frame, Py_ssize_t place) noexcept

cdef inline size_t aligned(size_t size) noexcept nogil:
    return (size + HEAD - 1) // HEAD * HEAD
