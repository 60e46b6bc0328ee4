"""For turns that are compiled too (``short_turns.pyx``)."""

from libc.stdint cimport uint64_t

from cython_ext.short_frames cimport ShortCall, ShortPart


cdef class ShortCalls:
    cdef readonly list over, applied
    cdef bytes pull, push, pulled, pushed  # headers up to the number of the request
    cdef uint64_t bytes_max
    cdef dict parts, calls, flying, waiting, took_s, by_socket

    cdef int remember(self, ShortCall call, list parts, uint64_t request_id, tuple times) except -1
    cdef bint take(self, double now_s, bytes frame) except -1
    cdef int answered(self, double now_s, ShortPart part, uint64_t request_id) except -1
