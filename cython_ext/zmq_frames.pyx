"""Frames of a ZeroMQ socket, all that are here in one call.

pyzmq makes a Python object of every frame, gives the interpreter lock away at every call, and says that
nothing has come by an exception, or by a look at an option: a message of 300 bytes costs 9 us to take and 10
to send, three times that in a process that has just been woken. Here the same functions of the same library
are called directly; pyzmq, which has loaded it, says where they are (`pslib.transport.router`).
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EHOSTUNREACH, EINTR, errno
from libc.stdint cimport uintptr_t
from libc.string cimport strerror

__all__ = ["FUNCTIONS", "ZmqFrames"]

FUNCTIONS = (
    *("zmq_msg_init", "zmq_msg_recv", "zmq_msg_data", "zmq_msg_size", "zmq_msg_more", "zmq_msg_move"),
    *("zmq_msg_close", "zmq_send", "zmq_getsockopt"),
)
"""Names of what `ZmqFrames` calls, in the order in which it wants their addresses."""

cdef enum:
    DONTWAIT = 1
    SNDMORE = 2
    EVENTS = 15
    POLLIN = 1


cdef class ZmqFrames:
    """The frames of one socket, which does not wait.

    One thread at a time may use it, and nobody once the socket is closed.

    Parameters
    ----------
    socket : int
        Address of libzmq's socket.
    functions : sequence of int
        Addresses of `FUNCTIONS`.
    copied_bytes : int
        Frames below this size are copied; others keep the memory that they came in.
    """

    def __init__(self, socket, functions, copied_bytes):
        init, take, data, size, more, move, finish, give, option = functions
        self.socket, self.copied_bytes = <void *><uintptr_t>socket, copied_bytes
        self.init, self.more = <OfMessage><uintptr_t>init, <OfMessage><uintptr_t>more
        self.move, self.take = <Move><uintptr_t>move, <Receive><uintptr_t>take
        self.data, self.size, self.give = <Data><uintptr_t>data, <Size><uintptr_t>size, <Send><uintptr_t>give
        self.finish, self.option = <OfMessage><uintptr_t>finish, <Option><uintptr_t>option

    def ready(self):
        """Whether a message is here; what tells of a message once has told of this one then."""
        cdef int events = 0
        cdef size_t size = sizeof(int)
        while self.option(self.socket, EVENTS, &events, &size) < 0:
            interrupted_or_wrong()
        return bool(events & POLLIN)

    def receive(self, Py_ssize_t most):
        """Messages that are here, at most so many.

        Returns
        -------
        list of (bytes, list of bytes or memoryview)
            Of each its first frame, which says who sent it, and all others.

        Raises
        ------
        OSError
            With ZeroMQ's number. What has come before an error, or what a signal's handler raises, is lost.
        """
        cdef list came = []
        while len(came) < most:
            one = self.message()
            if one is None:
                break
            came.append(one)
        return came

    cdef tuple message(self):
        """The next message of the socket: its first frame, and all others."""
        cdef bint more = True
        cdef list frames
        sender = self.frame(&more)
        if sender is None:
            return None
        return sender, self.frames_behind() if more else []

    cdef list frames_behind(self):
        """All frames of a message behind its first."""
        cdef list frames = []
        cdef bint more = True
        while more:
            frame = self.frame(&more)
            if frame is None:
                raise OSError(EAGAIN, "a message ended before its last frame")
            frames.append(frame)
        return frames

    cdef object frame(self, bint *more):
        """The next frame, and whether others of its message follow; None when nothing is here."""
        cdef Frame large
        cdef Message message
        self.init(&message)
        while self.take(&message, self.socket, DONTWAIT) < 0:
            if errno == EAGAIN:
                return None
            interrupted_or_wrong()
        more[0] = self.more(&message)
        if self.size(&message) < self.copied_bytes:
            try:
                return PyBytes_FromStringAndSize(<char *>self.data(&message), self.size(&message))
            finally:
                self.finish(&message)
        large = Frame.__new__(Frame)
        self.init(&large.message)
        self.move(&large.message, &message)
        large.finish = self.finish
        large.data, large.size = self.data(&large.message), self.size(&large.message)
        return memoryview(large)

    cpdef int send(self, bytes routing_id, bytes frame) except -1:
        """Send a message of one frame.

        Returns
        -------
        int
            0, or ZeroMQ's number of what is against it; nothing is sent then. Nor is it when a handler of a
            signal raises: between frames none is called, or the next message would begin behind half of one.
        """
        while self.given(routing_id, DONTWAIT | SNDMORE) < 0:
            if errno != EINTR:
                return errno
            PyErr_CheckSignals()
        while self.given(frame, DONTWAIT) < 0:
            if errno != EINTR:
                return errno
        return 0

    def send_all(self, messages, Py_ssize_t first, ids, silent):
        """Send messages as long as each is one small frame.

        Parameters
        ----------
        messages : sequence of (peer, sequence of frames)
        first : int
            Place of the first one to send.
        ids : dict or None
            The routing_id of each peer; None: a peer is its routing_id.
        silent : set or None
            Takes the peers of all that are tried.

        Returns
        -------
        int
            The place behind the last that is sent, or that has no room or nobody to go to: the message there
            is for pyzmq, or has an error to tell.
        """
        cdef Py_ssize_t place
        cdef int number
        for place in range(first, len(messages)):
            peer, frames = messages[place]
            routing_id = peer if ids is None else ids.get(peer)
            if not PyBytes_CheckExact(routing_id) or len(frames) != 1 or not PyBytes_CheckExact(frames[0]):
                return place
            if <size_t>PyBytes_GET_SIZE(frames[0]) >= self.copied_bytes:
                return place
            if silent is not None:
                silent.add(peer)
            number = self.send(routing_id, frames[0])
            if number and not was_too_early(number):
                return place
        return len(messages)

    cdef int given(self, bytes frame, int flags) noexcept:
        return self.give(self.socket, PyBytes_AS_STRING(frame), PyBytes_GET_SIZE(frame), flags)


cdef bint was_too_early(int number) noexcept:
    """Whether a queue is full, or there is none: its peer is slow or dead, and the request is sent again."""
    return number == EAGAIN or number == EHOSTUNREACH


cdef int interrupted_or_wrong() except -1:
    """After a signal its handler has had its turn; any other error is raised.

    A process that was forked hears of signals for ever, and must at least be ended by one.
    """
    if errno == EINTR:
        return PyErr_CheckSignals()
    raise OSError(errno, strerror(errno).decode("ascii", "replace"))


cdef class Frame:
    """Memory that a large frame came in."""

    cdef Message message
    cdef OfMessage finish
    cdef void *data
    cdef size_t size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, False, flags)

    def __dealloc__(self):
        if self.finish != NULL:
            self.finish(&self.message)
