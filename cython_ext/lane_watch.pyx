"""Which lanes tell of something: one epoll for all of a link (``lanes.pyx``), and for what else ends a wait.

What a wait has been told of lanes is kept until they are looked at.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, ENOTSOCK, errno
from libc.stdint cimport UINT64_MAX, uint64_t
from libc.string cimport strerror

from cython_ext.lane_sockets cimport (
    LANE_EVENTS,
    LaneEvent,
    lane_close,
    lane_epoll,
    lane_events,
    lane_forget,
    lane_watch,
)

__all__: list[str] = []

cdef uint64_t SOCKET = UINT64_MAX, WAKER = UINT64_MAX - 1  # beside the numbers of lanes


cdef class LaneWatch:
    """Hears of sockets that can be read or written; each has a number.

    One thread at a time may use it, and one may be in `wait` beside it.

    Attributes
    ----------
    fd : int
        Can be read whenever something is to be done; below 0 as long as it is not open.
    events, event_count
        What the last `wait` or `look` has told of lanes.
    """

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        self.close()

    cdef int open(self, int socket, int waker) except -1:
        """Begin with ZeroMQ's socket, and with what ends a wait."""
        self.fd = lane_epoll()
        if self.fd < 0 or not self.add(socket, SOCKET) or not self.add(waker, WAKER):
            raise OSError(errno, strerror(errno).decode("ascii", "replace"))
        return 0

    cdef bint add(self, int fd, uint64_t number) noexcept:
        """Hear when a socket can be read; whether that is possible."""
        return lane_watch(self.fd, fd, number, False, True) >= 0

    cdef bint heed_room(self, int fd, uint64_t number, bint heeds) noexcept:
        """Hear when it can be written as well, or no more; whether that is possible."""
        return lane_watch(self.fd, fd, number, heeds, False) >= 0

    cdef int forget(self, int fd) noexcept:
        """Hear nothing more of a socket."""
        lane_forget(self.fd, fd)
        return 0

    cdef int wait(self, int timeout_ms, bint *woken) except -1:
        """Wait for a message, of a lane or of the socket, or for the waker (woken: OUT).

        Returns
        -------
        int
            How much there is to look at. What of it is of lanes is kept.
        """
        cdef LaneEvent events[LANE_EVENTS]
        cdef int place, count, reason, epoll = self.fd
        woken[0] = False
        with nogil:
            count = lane_events(epoll, events, timeout_ms)
            reason = errno
        if count < 0:
            if self.fd < 0:  # closed meanwhile
                reason = ENOTSOCK
            if reason != EINTR:
                raise OSError(reason, strerror(reason).decode("ascii", "replace"))
            PyErr_CheckSignals()
            woken[0] = True
            return 1
        self.event_count = 0
        for place in range(count):
            if events[place].number == WAKER:
                woken[0] = True
            elif events[place].number != SOCKET:
                self.events[self.event_count] = events[place]
                self.event_count += 1
        return count

    cdef int look(self) noexcept:
        """What they tell of just now; the socket and the waker may be among them."""
        self.event_count = max(0, lane_events(self.fd, self.events, 0))
        return 0

    cdef int close(self) noexcept:
        if self.fd >= 0:
            lane_close(self.fd)
        self.fd, self.event_count = -1, 0
        return 0
