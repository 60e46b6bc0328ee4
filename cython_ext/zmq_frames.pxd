"""Frames of a ZeroMQ socket."""

from libc.stdint cimport uint64_t

cdef struct Message:  # zmq_msg_t: 64 bytes in every 4.x, aligned as pointers are
    uint64_t words[8]

ctypedef int (*OfMessage)(Message *) noexcept nogil
ctypedef int (*Move)(Message *, Message *) noexcept nogil
ctypedef int (*Receive)(Message *, void *, int) noexcept nogil
ctypedef void *(*Data)(Message *) noexcept nogil
ctypedef size_t (*Size)(Message *) noexcept nogil
ctypedef int (*Option)(void *, int, void *, size_t *) noexcept nogil
ctypedef int (*Send)(void *, const void *, size_t, int) noexcept nogil


cdef class ZmqFrames:
    cdef void *socket
    cdef OfMessage init, more, finish
    cdef Move move
    cdef Receive take
    cdef Data data
    cdef Size size
    cdef Send give
    cdef Option option
    cdef size_t copied_bytes

    cdef tuple message(self)
    cdef object frame(self, bint *more)
    cdef list frames_behind(self)
    cpdef int send(self, bytes routing_id, bytes frame) except -1
    cdef int given(self, bytes frame, int flags) noexcept


cdef bint was_too_early(int number) noexcept
