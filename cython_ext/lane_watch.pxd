"""For lanes (``lanes.pyx``)."""

from libc.stdint cimport uint64_t

from cython_ext.lane_sockets cimport LANE_EVENTS, LaneEvent


cdef class LaneWatch:
    cdef int fd
    cdef LaneEvent events[LANE_EVENTS]  # of which nothing has been taken yet
    cdef int event_count

    cdef int open(self, int socket, int waker) except -1
    cdef bint add(self, int fd, uint64_t number) noexcept
    cdef bint heed_room(self, int fd, uint64_t number, bint heeds) noexcept
    cdef int forget(self, int fd) noexcept
    cdef int wait(self, int timeout_ms, bint *woken) except -1
    cdef int look(self) noexcept
    cdef int close(self) noexcept
