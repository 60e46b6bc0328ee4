"""For frames of a socket beside which there are lanes (``zmq_frames.pyx``)."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "lane_sockets.h":
    enum:
        LANE_BYTES_MAX
        LANE_EVENTS
        LANE_MESSAGES
        LANE_WHOLE
    ctypedef struct LaneEvent:
        uint64_t number
        int can_read
        int can_write
    ctypedef struct LaneMessages:
        unsigned int sizes[LANE_MESSAGES]
        int fds[LANE_MESSAGES]
        unsigned char data[LANE_MESSAGES][LANE_BYTES_MAX]


cdef class Lane:
    cdef int fd
    cdef uint64_t number
    cdef bytes name
    cdef object peer  # at the end that has begun it
    cdef bint greeted
    cdef list waiting  # (head, frame): there was no room


cdef class Lanes:
    cdef object __weakref__
    cdef int epoll, listening
    cdef int64_t process  # others that it has forked share its epoll, and must not touch it
    cdef uint64_t opened
    cdef dict lanes  # by number
    cdef readonly dict ways
    cdef list came  # messages in reverse order
    cdef public object shared  # SharedFrames or SharedViews: hears of regions and ends; None: nobody does
    cdef readonly int waiting_count
    cdef LaneMessages *memory
    cdef LaneEvent events[LANE_EVENTS]  # of which nothing has been taken yet
    cdef int event_count

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


cdef bint is_lane(bytes name) noexcept
