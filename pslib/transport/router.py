"""ROUTER socket of ZeroMQ: its messages, its wait and its waker; the links are in zmq_link.py."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import ceil

import zmq

from pslib.config import Limits
from pslib.process.platform import WAKE, WAKES_BYTES, wake_descriptors
from pslib.wire.codec import Buffer

BATCH_MAX = 64
"""Messages received at a time, before sending has its turn."""
COPIED_BYTES = 1 << 16
"""Frames below this size are copied: handing over their memory, and taking it back from another thread, costs
more.
"""

NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_NOT_NOW = (errno.EAGAIN, errno.EHOSTUNREACH)
"""Send errors for a peer with a full queue, or none: it is slow or dead, and the request is retried."""
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""Plain integers: each operation on ZeroMQ's enums costs a microsecond of Python."""

# option: (value, why)
OPTIONS: dict[int, tuple[int, str]] = {
    zmq.LINGER: (
        0,
        "the default -1 hangs at exit when a peer is dead; what must arrive is acknowledged anyway",
    ),
    zmq.HEARTBEAT_IVL: (1000, "without it a cut cable raises no event at all"),
    zmq.HEARTBEAT_TIMEOUT: (5000, "a machine short of CPU replies late"),
    zmq.HEARTBEAT_TTL: (5000, "the same for the other side: a server sends heartbeats less often"),
    zmq.CONNECT_TIMEOUT: (3000, "the kernel's own is 127 s, seen after a restarted peer"),
    zmq.RECONNECT_IVL: (50, "a restarted peer is found quickly"),
    zmq.RECONNECT_IVL_MAX: (2000, "hundreds of clients must not overload it"),
    zmq.SNDHWM: (1000, "bounds the queue to a dead peer"),
    zmq.RCVHWM: (1000, "the same on the way in"),
    zmq.HANDSHAKE_IVL: (10000, "a connection that sends nothing is dropped"),
    zmq.ROUTER_HANDOVER: (0, "else a peer that guesses an identity receives its owner's replies"),
    zmq.ROUTER_MANDATORY: (1, "a reply to a vanished peer raises an error, instead of a silent drop"),
    zmq.BACKLOG: (1024, "hundreds of trainers connect at once"),
}


class Waker:
    """File descriptor that ends a wait.

    `wake` comes from any thread, also after `close`: by then the descriptor's number may belong to another
    file, so both check ``_open`` under a lock.
    """

    def __init__(self) -> None:
        self.fd, self._end = wake_descriptors()
        self._open = True
        self._lock = threading.Lock()

    def wake(self) -> None:
        """End the wait, or the next one."""
        with self._lock:
            if self._open:
                try:  # not `suppress`: this is on the path of each reply
                    os.write(self._end, WAKE)
                except BlockingIOError:  # a full pipe, which ends the wait as well
                    return

    def drain(self) -> None:
        """Clear the event, before the next wait."""
        try:
            os.read(self.fd, WAKES_BYTES)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            if self._open:
                self._open = False
                for descriptor in {self.fd, self._end}:
                    os.close(descriptor)


class Router:
    """ROUTER socket with a wait.

    One thread at a time may use the socket (the holder of a lock of the caller's); beside it, one thread may
    be in `wait`, which does not touch the socket. ZeroMQ's descriptor signals a message once, and a `send`
    may consume the signal: hence `ready`.
    """

    _held: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context of each send and receive; a client's holds back signal handlers that raise."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], limits: Limits) -> None:
        self._socket = context.socket(zmq.ROUTER)
        for option, (value, _why) in OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes_max)
        self.idle = False
        """True if the last wait ended without a message."""
        self.is_empty = False
        """True if the last check found no message, with no wait or send since."""
        self.waker = Waker()
        self.descriptors = int(self._socket.getsockopt(zmq.FD)), self.waker.fd
        self._waiting = select.poll()
        for fd in self.descriptors:
            self._waiting.register(fd, select.POLLIN)

    def _send(self, routing_id: bytes, frames: Sequence[Buffer]) -> None:
        """Queue a message, whole: behind half of one, the next would be a part of it."""
        self.is_empty = False
        send, last = self._socket.send, len(frames) - 1
        try:
            with self._held():
                send(routing_id, _NOW_AND_MORE)
                for place, frame in enumerate(frames):
                    more = NOW if place == last else _NOW_AND_MORE
                    send(frame, more, copy=len(frame) < COPIED_BYTES)
        except zmq.ZMQError as error:
            if error.errno not in _NOT_NOW:
                raise

    def _sender(self) -> bytes | None:
        """Receive the first frame of a message, its sender; None: the message is to be ignored."""
        return self._socket.recv(NOW)

    def _receive(self) -> list[tuple[bytes, list[Buffer]]]:
        """Return arrived messages and their senders."""
        if self.is_empty:
            return []
        receive = self._socket.recv
        came: list[tuple[bytes, list[Buffer]]] = []
        with self._held():  # a message is taken whole; one that is lost to a handler's error is sent again
            while not self.is_empty and len(came) < BATCH_MAX and self.ready():
                sender = self._sender()
                frame = receive(NOW, copy=False)
                frames: list[Buffer] = [frame.bytes if len(frame) < COPIED_BYTES else frame.buffer]
                while frame.more:
                    frame = receive(NOW, copy=False)
                    frames.append(frame.buffer)
                if sender is not None:
                    came.append((sender, frames))
        return came

    def ready(self) -> bool:
        """Return whether a message has arrived; costs a system call."""
        found = bool(int(self._socket.getsockopt(_EVENTS)) & _POLLIN)
        self.is_empty = not found
        return found

    def wait(self, timeout_s: float) -> None:
        """Wait until a message may have come, for `wake`, or for the timeout."""
        ready = self._waiting.poll(ceil(max(0.0, timeout_s) * 1000))
        self.idle = not ready
        for fd, _event in ready:
            if fd == self.waker.fd:
                self.waker.drain()
        self.is_empty = False

    def wake(self) -> None:
        """End a wait in another thread."""
        self.waker.wake()
