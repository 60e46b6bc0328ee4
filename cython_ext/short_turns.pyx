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
from libc.math cimport INFINITY, ceil
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
    """A socket, the lock that guards it, what ends a wait for it, and how its messages are taken.

    Raises
    ------
    OSError
        From a turn, when the socket has been closed, or ZeroMQ says what is wrong with it.
    """

    cdef ZmqFrames frames
    cdef object router, waker, lock
    cdef pollfd polled[2]

    def __init__(self, router, lock):
        self.router, self.waker, self.lock, self.frames = router, router.waker, lock, router.frames
        for place, fd in enumerate(router.descriptors):
            self.polled[place].fd, self.polled[place].events = fd, POLLIN

    cdef int turn(self, double patience_s, double until_s) except -1:
        """Take what comes until it has to be handed over, somebody wakes this thread, or it is time."""
        cdef double over_s = monotonic() + patience_s
        cdef bint is_last = False, full
        cdef int ended
        while True:
            with self.lock:
                if self.router.frames is not self.frames:
                    raise OSError(ENOTSOCK, strerror(ENOTSOCK).decode("ascii", "replace"))
                if self.take(&full):
                    return 0
            if is_last or monotonic() >= until_s:
                return 0
            ended = self.wait(0.0 if full else over_s - monotonic())
            is_last = ended == WOKEN or (ended == OVER and not full)

    cdef bint take(self, bint *full) except -1:
        """Take what is here, or much of it (full: OUT); whether something has to be handed over."""
        cdef tuple one
        full[0] = False
        for _ in range(BATCH_MAX):
            one = self.frames.next(False)
            if one is None:
                return self.is_due()
            if self.take_one(one[0], one[1]):
                return True
        full[0] = True
        return self.is_due()

    cdef bint take_one(self, object sender, list frames) except -1:
        """Take a message; whether something has to be handed over at once. Each kind of turns says how."""
        raise NotImplementedError  # Cython's C methods can't be abstract; both kinds below have their own

    cdef bint is_due(self) except -1:
        """Whether something of all that was here has to be handed over."""
        return False

    cdef int wait(self, double timeout_s) except -1:
        """As ``Router.wait``; how it has ended."""
        cdef int count, timeout_ms = <int>ceil(1000 * max(0.0, min(timeout_s, 1e6)))
        cdef bint woken
        if self.frames.lanes is None:
            count = self.wait_for_socket(timeout_ms, &woken)
        else:
            count = self.frames.lanes.wait(timeout_ms, &woken)
        self.router.idle, self.router.is_empty = count == 0, False
        if woken:
            self.waker.drain()
            return WOKEN
        return READY if count else OVER

    cdef int wait_for_socket(self, int timeout_ms, bint *woken) except -1:
        """As ``Lanes.wait``, without any lanes."""
        cdef int count, reason
        with nogil:
            count = poll(self.polled, 2, timeout_ms)
            reason = errno
        if count < 0:
            if reason != EINTR:
                raise OSError(reason, strerror(reason).decode("ascii", "replace"))
            PyErr_CheckSignals()
            woken[0] = True
            return 1
        woken[0] = count > 0 and self.polled[1].revents != 0
        return count


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
    cdef object thread, shard, shard_turn, failed, other
    cdef double held_until_s
    cdef readonly object failure

    def __init__(self, router, lock, requests, thread, failed):
        super().__init__(router, lock)
        self.requests, self.thread, self.shard, self.shard_turn = requests, thread, thread.shard, thread.turn
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
        """
        self.failure = self.other = None
        self.held_until_s = held_until_s
        self.turn(patience_s, until_s)
        other, self.other = self.other, None
        return [] if other is None else [other]

    cdef bint take_one(self, object sender, list frames) except -1:
        """Answer a message; whether it is not for this."""
        cdef bytes answer = None
        cdef int number
        if len(frames) == 1 and PyBytes_CheckExact(frames[0]) and monotonic() < self.held_until_s:
            answer = self.answer(frames)
        if answer is None:
            self.other = sender, frames
            return True
        number = self.frames.send(sender, answer)
        if number and not was_too_early(number):
            raise OSError(number, strerror(number).decode("ascii", "replace"))
        return False

    cdef bytes answer(self, list frames):
        """The answer to a request that may be short; None: it is not, has failed, or the shard has work."""
        if not self.shard_turn.acquire(False):
            return None
        try:
            if self.thread.given == self.thread.settled and not self.shard.broken:
                return self.requests.answer(self.shard, frames[0])
        except Exception as error:
            self.failure = self.failed(frames, error)
        finally:
            self.shard_turn.release()
        return None


cdef class ShortAnswers(Turns):
    """The turns of a thread that receives what others in its process have asked for.

    Parameters
    ----------
    router : pslib.transport.zmq_link.ZmqClientLink
        That takes small frames itself.
    lock : lock
        For the socket and the calls.
    calls : ShortCalls

    Attributes
    ----------
    message_count, byte_count : int
        Of what has come.
    """

    cdef ShortCalls calls
    cdef dict peers
    cdef set silent
    cdef list others
    cdef double now_s, began_s, patience_s
    cdef readonly long long message_count, byte_count

    def __init__(self, router, lock, calls):
        super().__init__(router, lock)
        self.peers, self.silent, self.calls = router.peers, router.silent, calls

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
        """
        self.others = []
        self.now_s, self.patience_s, self.began_s = now_s, patience_s, monotonic()
        self.turn(patience_s, INFINITY)
        return self.others

    cdef bint take_one(self, object sender, list frames) except -1:
        cdef double now_s
        peer = self.peers.get(sender)
        if peer is None:
            return False
        self.silent.discard(peer)
        self.message_count += 1
        for frame in frames:
            self.byte_count += PyBytes_GET_SIZE(frame) if PyBytes_CheckExact(frame) else len(frame)
        # one that was stopped meanwhile has not waited for that long: see `pslib.clock.AwakeClock`
        now_s = self.now_s + min(monotonic() - self.began_s, self.patience_s)
        if len(frames) != 1 or not PyBytes_CheckExact(frames[0]) or not self.calls.take(now_s, frames[0]):
            self.others.append((peer, frames))
        return False

    cdef bint is_due(self) except -1:
        return bool(self.others) or bool(self.calls.over)
