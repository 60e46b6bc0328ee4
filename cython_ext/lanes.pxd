"""For frames of a socket beside which there are lanes (``zmq_frames.pyx``)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from cython_ext.lane_sockets cimport LaneMessages
from cython_ext.lane_watch cimport LaneWatch


cdef enum:
    NAME_BYTES = 9  # a 0, and a number: who calls himself so by ZeroMQ gets no answer


cdef class Lane:
    cdef int fd
    cdef uint64_t number
    cdef bytes name
    cdef object peer  # at the end that has begun it
    cdef bint greeted
    cdef list waiting  # (head, frame): there was no room


cdef class Lanes:
    cdef object __weakref__
    cdef LaneWatch watch
    cdef int listening
    cdef int64_t process  # others that it has forked share its epoll, and must not touch it
    cdef uint64_t opened
    cdef dict lanes  # by number
    cdef readonly dict ways
    cdef list came  # messages in reverse order
    cdef public object shared  # SharedFrames or SharedViews: hears of regions and ends; None: nobody does
    cdef readonly int waiting_count
    cdef LaneMessages *memory

    cdef int wait(self, int timeout_ms, bint *woken) except -1
    cpdef int send(self, bytes name, bytes frame) except -1
    cdef int give(self, Lane lane, bytes head, bytes frame) except -1
    cdef list unsent(self, object peer)
    cdef Py_ssize_t fill(self, bint look) except -1
    cdef int drain(self) except -1
    cdef int look(self) except -1
    cdef int take_all(self, bint whole) except -1
    cdef int take(self, Lane lane, bint whole) except -1
    cdef bint take_one(self, Lane lane, int place) except -1
    cdef int flush(self, Lane lane) except -1
    cdef int accept(self) except -1
    cdef Lane open(self, int fd, object peer)
    cdef int end(self, Lane lane) except -1
    cdef int leave(self, int fd) except -1
    cdef int leave_to_parent(self) except -1


cdef inline bytes name_of(uint64_t number):
    return b"\0" + PyBytes_FromStringAndSize(<char *>&number, sizeof(number))


cdef inline bint is_lane(bytes name) noexcept:
    """Whether somebody is reached by a lane; all others are ZeroMQ's."""
    return PyBytes_GET_SIZE(name) == NAME_BYTES and PyBytes_AS_STRING(name)[0] == 0


cdef inline uint64_t number_of(bytes name) noexcept:
    """Of a lane; 0 is none's."""
    cdef uint64_t number = 0
    if is_lane(name):
        memcpy(&number, PyBytes_AS_STRING(name) + 1, sizeof(number))
    return number
