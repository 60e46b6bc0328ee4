"""Turns of a thread to which nothing but short messages comes: from the socket to a table, or a call.

A process among hundreds is woken for one message, and finds its code in no cache: a function of Python that
is called once costs a microsecond or two then. What a turn is, is said by ``Server._turn`` and
``Endpoint._turn``; these are the same as long as all messages are what ``ShortRequests`` and ``ShortCalls``
are for, and hand over the first that is not.
"""

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.time cimport monotonic
from libc.errno cimport EINTR, ENOTSOCK, errno
from libc.math cimport ceil
from libc.string cimport strerror

from cython_ext.short_calls cimport ShortCalls
from cython_ext.short_requests cimport ShortRequests
from cython_ext.zmq_frames cimport ZmqFrames, was_too_early

cdef extern from "poll.h" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int POLLIN
    int poll(pollfd *fds, unsigned long count, int timeout_ms)

__all__ = ["ShortAnswers", "ShortServing"]

cdef enum:
    BATCH_MAX = 64  # messages until others who wait for the lock, or for the interpreter's, have their turn
    OVER = 0  # how a wait has ended: nothing has come,
    READY = 1  # something may have,
    WOKEN = 2  # or whoever waits shall look around


cdef class Turns:
    """A socket, the lock that guards it, and what ends a wait for it."""

    cdef ZmqFrames frames
    cdef object router, waker, lock
    cdef pollfd polled[2]

    def __init__(self, router, lock):
        self.router, self.waker, self.lock, self.frames = router, router.waker, lock, router.frames
        for place, fd in enumerate(router.descriptors):
            self.polled[place].fd, self.polled[place].events = fd, POLLIN

    cdef int check(self) except -1:
        """Raise where the socket has been closed meanwhile; asked under the lock, after each wait."""
        if self.router.frames is not self.frames:
            raise OSError(ENOTSOCK, strerror(ENOTSOCK).decode("ascii", "replace"))
        return 0

    cdef int wait(self, double timeout_s) except -1:
        cdef int number, reason = 0, timeout_ms = <int>ceil(1000 * max(0.0, min(timeout_s, 1e6)))
        with nogil:
            number = poll(self.polled, 2, timeout_ms)
            if number < 0:
                reason = errno
        self.router.idle = number == 0
        if number == 0:
            return OVER
        if number < 0:
            if reason != EINTR:
                raise OSError(reason, strerror(reason).decode("ascii", "replace"))
            PyErr_CheckSignals()
            return WOKEN
        if self.polled[1].revents:
            self.waker.drain()
            return WOKEN
        return READY


cdef class ShortServing(Turns):
    """A server's turns; of one whose only shard has a thread.

    Parameters
    ----------
    router : pslib.transport.router.Router
        That takes small frames itself.
    lock : lock
        For the socket.
    requests : ShortRequests
    thread : pslib.server.shard_thread.ShardThread
    failed : callable
        Makes, of frames and an exception, what to answer to a request that has ended half-way; called before
        anybody else can touch the shard.

    Attributes
    ----------
    failure : object
        Of the last `serve`: what that has made of the message that was given back; None: it is whole.
    """

    cdef ShortRequests requests
    cdef object thread, shard, turn, failed
    cdef readonly object failure

    def __init__(self, router, lock, requests, thread, failed):
        super().__init__(router, lock)
        self.requests, self.thread, self.shard, self.turn = requests, thread, thread.shard, thread.turn
        self.failed = failed

    def serve(self, double patience_s, double until_s, double held_until_s):
        """Answer short requests until something else comes, somebody wakes this thread, or it is time.

        Parameters
        ----------
        patience_s : float
            How long to wait for messages.
        until_s : float
            When to come back though short requests go on coming; of Python's monotonic clock.
        held_until_s : float
            From when on answers must not leave.

        Returns
        -------
        list of (bytes, list of frames)
            A message that is not for this, if one has come.

        Raises
        ------
        OSError
            When the socket has been closed, or ZeroMQ says what is wrong with it.
        """
        cdef double over_s = monotonic() + patience_s
        cdef bint is_last = False, full
        cdef int ended
        self.failure = None
        while True:
            with self.lock:
                self.check()
                came = self.take(held_until_s, &full)
            if came is not None:
                return [came]
            if is_last or monotonic() >= until_s:
                return []
            ended = self.wait(0.0 if full else over_s - monotonic())
            is_last = ended == WOKEN or (ended == OVER and not full)

    cdef object take(self, double held_until_s, bint *full):
        """Answer what is here: the first message that is not for this; full (OUT): there may be more."""
        cdef bint more = False
        cdef list frames
        full[0] = False
        self.router.is_empty = False
        for _ in range(BATCH_MAX):
            sender = self.frames.frame(&more)
            if sender is None:
                return None
            frames = self.frames.frames_behind() if more else []
            if not self.answered(sender, frames, held_until_s):
                return sender, frames
        full[0] = True
        return None

    cdef bint answered(self, object sender, list frames, double held_until_s) except -1:
        """Whether a message was for this; then its answer is on its way."""
        cdef bytes answer = None
        cdef int number
        if len(frames) != 1 or not PyBytes_CheckExact(frames[0]) or monotonic() >= held_until_s:
            return False
        if not self.turn.acquire(False):
            return False
        try:
            if self.thread.given == self.thread.settled and not self.shard.broken:
                answer = self.requests.answer(self.shard, frames[0])
        except Exception as error:
            self.failure = self.failed(frames, error)
        finally:
            self.turn.release()
        if answer is None:
            return False
        number = self.frames.send(sender, answer)
        if number and not was_too_early(number):
            raise OSError(number, strerror(number).decode("ascii", "replace"))
        return True


cdef class ShortAnswers(Turns):
    """The turns of a thread that receives what others in its process have asked for.

    Parameters
    ----------
    router : pslib.transport.zmq_link.ZmqClientLink
        That takes small frames itself.
    lock : lock
        For the socket and the calls.
    peers : dict
        Of what a message begins with, whose it is.
    silent : set
        Peers of whom nothing has come: those of whom something comes leave it.
    calls : ShortCalls

    Attributes
    ----------
    message_count, byte_count : int
        Of what has come.
    """

    cdef ShortCalls calls
    cdef dict peers
    cdef set silent
    cdef readonly long long message_count, byte_count

    def __init__(self, router, lock, dict peers, set silent, calls):
        super().__init__(router, lock)
        self.peers, self.silent, self.calls = peers, silent, calls

    def receive(self, double now_s, double patience_s):
        """Take answers to short calls until one of those is over, something else comes, or it is time.

        Parameters
        ----------
        now_s : float
            By the caller's clock.
        patience_s : float
            How long to wait for messages.

        Returns
        -------
        list of (str, list of frames)
            Messages that are not for this, and from whom.

        Raises
        ------
        OSError
            When the socket has been closed, or ZeroMQ says what is wrong with it.
        """
        cdef double began_s = monotonic()
        cdef bint is_last = False, full
        cdef int ended
        while True:
            with self.lock:
                self.check()
                # one that was stopped meanwhile has not waited for that long: see `pslib.clock.AwakeClock`
                came = self.take(now_s + min(monotonic() - began_s, patience_s), &full)
                if came or self.calls.over:
                    return came
            if is_last:
                return []
            ended = self.wait(0.0 if full else patience_s - (monotonic() - began_s))
            is_last = ended == WOKEN or (ended == OVER and not full)

    cdef list take(self, double now_s, bint *full):
        """Take what is here, up to so many: all that is not for this; full (OUT): there may be more."""
        cdef bint more = False
        cdef list frames, rest = []
        full[0] = False
        self.router.is_empty = False
        for _ in range(BATCH_MAX):
            sender = self.frames.frame(&more)
            if sender is None:
                return rest
            frames = self.frames.frames_behind() if more else []
            peer = self.peers.get(sender)
            if peer is None:
                continue
            self.silent.discard(peer)
            self.message_count += 1
            for frame in frames:
                self.byte_count += PyBytes_GET_SIZE(frame) if PyBytes_CheckExact(frame) else len(frame)
            if len(frames) != 1 or not PyBytes_CheckExact(frames[0]) or not self.calls.take(now_s, frames[0]):
                rest.append((peer, frames))
        full[0] = True
        return rest
