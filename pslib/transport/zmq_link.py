"""ZeroMQ links; its encryption stands in curve.py beside this file, its warnings in monitor.py.

ROUTER at both ends (draft sockets abort the process). ZeroMQ reconnects and finds dead links, but loses
queued messages in silence when a peer dies: resending is the business of `pslib.protocol.requests`.
"""

from __future__ import annotations

import ctypes
import errno
import select
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from math import ceil
from typing import Any

import zmq
import zmq.backend

from cython_ext.zmq_frames import FUNCTIONS, ZmqFrames
from pslib.config import Limits
from pslib.errors import ConfigurationError
from pslib.protocol.codec import Buffer
from pslib.transport.curve import ZapHandler, encrypt_client, encrypt_server, peer_of
from pslib.transport.keys import Keys
from pslib.transport.monitor import Monitor, troubles
from pslib.transport.same_host import is_loopback, is_ours, unix_address, wanted
from pslib.transport.waker import Waker

__all__ = ["ZmqTransport"]

BATCH_MAX = 64
"""Messages taken at a time: then what is to be sent gets its turn."""
TURNS_A_LOOK = 64
"""A busy link looks this often why some peer is silent; an idle one each time that nothing has come."""
COPIED_BYTES = 1 << 16
"""Frames below this size are copied: to hand over their memory, and to take it back from another thread,
costs more."""

_NOW, _NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_NOT_NOW = (errno.EAGAIN, errno.EHOSTUNREACH)
"""The queue to a peer is full, or there is none: it is slow or dead, and the request is sent again."""
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
"""Plain numbers: each operation on ZeroMQ's own kind of them is a microsecond of Python."""

# option: (value, why)
_OPTIONS: dict[int, tuple[int, str]] = {
    zmq.LINGER: (
        0,
        "the default -1 hangs at exit when a peer is dead; what must arrive is acknowledged anyway",
    ),
    zmq.HEARTBEAT_IVL: (1000, "without it a cut cable raises no event at all"),
    zmq.HEARTBEAT_TIMEOUT: (5000, "a machine that is short of CPU answers late"),
    zmq.HEARTBEAT_TTL: (5000, "the same for the other side: a server asks more seldom"),
    zmq.CONNECT_TIMEOUT: (3000, "the kernel's own is 127 s, seen after a restarted peer"),
    zmq.RECONNECT_IVL: (50, "a restarted peer is found quickly"),
    zmq.RECONNECT_IVL_MAX: (2000, "hundreds of clients must not storm it"),
    zmq.SNDHWM: (1000, "bounds the queue to a dead peer"),
    zmq.RCVHWM: (1000, "the same on the way in"),
    zmq.HANDSHAKE_IVL: (10000, "a connection that says nothing is dropped"),
    zmq.ROUTER_HANDOVER: (0, "else anybody who guesses an identity gets the answers of its owner"),
    zmq.ROUTER_MANDATORY: (1, "an answer to a vanished peer is seen, not dropped in silence"),
    zmq.BACKLOG: (1024, "hundreds of trainers connect at once"),
}
SERVER_ASKS_MS = 10_000
"""Those that connect ask every second. A server asks too, more seldom: data that comes puts off what ZeroMQ
does when nobody asks any more, so who vanished while it was busy would stay for ever."""
SOCKETS_MAX = 65536
"""A context's default ends at a few hundred peers."""


def _functions() -> list[int] | None:
    """Where `FUNCTIONS` are in the library that pyzmq has loaded; None: not to be found, it does it all."""
    home = "zmq.backend.cython._zmq"
    if zmq.backend.Socket.__module__ != home:
        return None  # another backend, with a library of its own perhaps
    try:
        library = ctypes.CDLL(import_module(home).__file__)
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in FUNCTIONS]
    except (AttributeError, ImportError, OSError):
        return None
    return [address for address in found if address is not None]


_FUNCTIONS = _functions()


class _Router:
    """A ROUTER and a way to wait for it.

    One thread at a time may use the socket (whoever holds a lock of the caller's); beside it, one thread may
    be in `wait`, which does not touch the socket. ZeroMQ's descriptor tells of a message once, and a `send`
    may be what takes notice of it: hence `ready`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], limits: Limits) -> None:
        self._socket = context.socket(zmq.ROUTER)
        for option, (value, _why) in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes_max)
        self.idle = False  # nothing has come in the last wait
        self._is_empty = False  # nothing was here at the last look, since when nobody has waited or sent
        self._frames: ZmqFrames | None = None
        if _FUNCTIONS is not None:
            self._frames = ZmqFrames(self._socket.underlying, _FUNCTIONS, COPIED_BYTES)
        self._waker = Waker()
        self._waiting = select.poll()
        self._waiting.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        self._waiting.register(self._waker.fd, select.POLLIN)

    def _send(self, routing_id: bytes, frames: Sequence[Buffer]) -> None:
        self._is_empty = False
        one, direct = frames[0] if len(frames) == 1 else None, self._frames
        if direct is not None and type(one) is bytes and len(one) < COPIED_BYTES:
            number = direct.send(routing_id, one)
            if number and number not in _NOT_NOW:
                raise zmq.ZMQError(number)
            return
        send, last = self._socket.send, len(frames) - 1
        try:
            send(routing_id, _NOW_AND_MORE)
            for place, frame in enumerate(frames):
                more = _NOW if place == last else _NOW_AND_MORE
                send(frame, more, copy=len(frame) < COPIED_BYTES)
        except zmq.ZMQError as error:
            if error.errno not in _NOT_NOW:
                raise

    def _send_all(
        self,
        messages: Sequence[tuple[Any, list[Buffer]]],
        send: Callable[[Any, Sequence[Buffer]], None],
        ids: dict[str, bytes] | None = None,
        silent: set[str] | None = None,
    ) -> None:
        """Send all messages: small ones at once, by the ``ids`` of their peers; others by ``send``."""
        self._is_empty = False
        messages, place = list(messages), 0
        while place < len(messages):
            direct = self._frames  # another thread may take it away as it closes the link
            if direct is not None:
                place = direct.send_all(messages, place, ids, silent)
            for message in messages[place : place + 1]:  # it is large, of a new peer, or will fail
                send(*message)
                place += 1

    def _sender(self) -> bytes | None:
        """Take the first frame of a message: who sent it; None: the message is not to be looked at."""
        return self._socket.recv(_NOW)

    def _receive(self) -> list[tuple[bytes, list[Buffer]]]:
        """Messages that are here, and who sent them."""
        if self._is_empty:
            return []
        direct = self._frames  # another thread may take it away as it closes the link
        if direct is not None:
            taken = direct.receive(BATCH_MAX)
            self._is_empty = len(taken) < BATCH_MAX
            return taken
        receive = self._socket.recv
        came: list[tuple[bytes, list[Buffer]]] = []
        while not self._is_empty and len(came) < BATCH_MAX and self.ready():
            sender = self._sender()
            frame = receive(_NOW, copy=False)
            frames: list[Buffer] = [frame.bytes if len(frame) < COPIED_BYTES else frame.buffer]
            while frame.more:
                frame = receive(_NOW, copy=False)
                frames.append(frame.buffer)
            if sender is not None:
                came.append((sender, frames))
        return came

    def ready(self) -> bool:
        """Whether a message is here; a look is a system call."""
        direct = self._frames
        if direct is not None:
            self._is_empty = not direct.ready()
        else:
            self._is_empty = not int(self._socket.getsockopt(_EVENTS)) & _POLLIN
        return not self._is_empty

    def wait(self, timeout_s: float) -> None:
        """Wait until a message may have come, for `wake`, or for the timeout."""
        ready = self._waiting.poll(ceil(max(0.0, timeout_s) * 1000))
        self.idle = not ready
        for fd, _event in ready:
            if fd == self._waker.fd:
                self._waker.drain()
        self._is_empty = False

    def wake(self) -> None:
        """End a wait in another thread."""
        self._waker.wake()

    def leave_frames(self) -> None:
        """The socket is about to be closed: pyzmq says so to whoever uses it all the same."""
        self._frames = None


class ZmqClientLink(_Router):
    """One ROUTER that is connected to any number of addresses, each when first needed.

    With a socket for each address, all of them would be asked in every turn whether something has come.
    DEALER, the usual asking end, can't send to one address of many.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        limits: Limits,
        keys: Keys | None = None,
        same_host: bool = True,
    ) -> None:
        super().__init__(context, limits)
        if keys:
            encrypt_client(self._socket, keys)
        self._role = keys.role if keys else None
        self._monitor = Monitor(self._socket)
        self._connections = 0
        self._ids: dict[str, bytes] = {}
        self._peers: dict[bytes, str] = {}
        self._same_host = same_host
        self._unix: dict[str, str] = {}  # peers that are reached by a Unix socket, and its address
        self._silent: set[str] = set()
        self._turns = 0

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Queue a message for the peer at an address."""
        routing_id = self._ids.get(peer) or self._connect(peer)
        self._silent.add(peer)
        self._send(routing_id, frames)

    def send_all(self, messages: Sequence[tuple[str, list[Buffer]]]) -> None:
        """`send` of all."""
        self._send_all(messages, self.send, self._ids, self._silent)

    def _connect(self, peer: str, same_host: bool = True) -> bytes:
        beside = unix_address(peer) if same_host and self._same_host else None
        where = beside if beside is not None and is_ours(beside) else peer
        self._is_empty = False  # ZeroMQ takes its signals in any call
        self._connections += 1
        routing_id = b"p%d" % self._connections
        self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, routing_id)
        try:
            self._socket.connect(where)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"address {peer!r}: {error}; expected tcp://HOST:PORT") from error
        if where != peer:
            self._unix[peer] = where
        self._ids[peer], self._peers[routing_id] = routing_id, peer
        return routing_id

    def _disconnect(self, peer: str) -> None:
        self._silent.discard(peer)
        self._is_empty = False
        del self._peers[self._ids.pop(peer)]
        with suppress(zmq.ZMQError):  # ZeroMQ has given it up already
            self._socket.disconnect(self._unix.pop(peer, peer))

    def _leave_unix(self, peer: str) -> None:
        """Go on with TCP: nobody has looked whose the name will be, should ZeroMQ find it again."""
        was_silent = peer in self._silent
        self._disconnect(peer)
        self._connect(peer, same_host=False)
        if was_silent:
            self._silent.add(peer)

    def receive(self) -> list[tuple[str, list[Buffer]]]:
        """Messages that have come from any peer."""
        taken, peers = self._receive(), self._peers
        if not taken:
            return []
        came = [(peers[sender], frames) for sender, frames in taken if sender in peers]
        if came:
            self._silent.difference_update([peer for peer, _frames in came])
        return came

    def refusals(self) -> list[tuple[str, str]]:
        """Peers that could not be connected, and why; ZeroMQ gives up for good on some, so none are kept."""
        self._turns += 1
        if not self._silent or not (self.idle or self._turns % TURNS_A_LOOK == 0):
            return []
        told = list(troubles(self._monitor, self._silent, self._role).items())
        for peer, _reason in told:
            self._disconnect(peer)
        for peer in self._monitor.broken.intersection(self._unix):
            self._leave_unix(peer)
        self._monitor.broken.clear()
        return told

    def close(self) -> None:
        """Close the socket; queued messages are dropped."""
        if not self._socket.closed:
            self._monitor.close()
        self.leave_frames()
        self._socket.close(linger=0)
        self._waker.close()


class ZmqServerLink(_Router):
    """One ROUTER that listens."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        limits: Limits,
        keys: Keys | None = None,
        same_host: bool = True,
    ) -> None:
        super().__init__(context, limits)
        self._monitor: Monitor | None = None
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, SERVER_ASKS_MS)
        if keys:
            encrypt_server(self._socket, keys)
            self.leave_frames()  # pyzmq tells roles
            self._monitor = Monitor(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._close(linger_ms=0)
            raise ConfigurationError(
                f"can't listen on {address}: {error}; choose another port or 0 for any free one"
            ) from error
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        beside = unix_address(self.address) if same_host else None
        if beside is not None:
            with suppress(zmq.ZMQError):  # somebody has the name, or may forbid it: TCP does all
                self._socket.bind(beside)

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Queue an answer."""
        self._send(peer, frames)

    def send_all(self, messages: Sequence[tuple[bytes, list[Buffer]]]) -> None:
        """`send` of all."""
        self._send_all(messages, self.send)

    def _sender(self) -> bytes | None:
        if self._monitor is None:
            return super()._sender()
        return peer_of(self._socket.recv(_NOW, copy=False))

    def poll(self, timeout_s: float) -> list[tuple[bytes, list[Buffer]]]:
        """Messages that have come; waits for one."""
        if not self.ready():
            self.wait(timeout_s)
        return self.receive()

    def receive(self) -> list[tuple[bytes, list[Buffer]]]:
        """Messages that have come."""
        came = self._receive()
        if self._monitor is not None:
            self._monitor.count_failures(self.address)
        return came

    def close(self) -> None:
        """Stop listening; give what is queued a moment to leave."""
        self._close(linger_ms=500)

    def _close(self, linger_ms: int) -> None:
        if self._monitor is not None and not self._socket.closed:
            self._monitor.close()
        self.leave_frames()
        self._socket.close(linger=linger_ms)
        self._waker.close()


_LIMITS = Limits()


class ZmqTransport:
    """Makes ZeroMQ links of one context.

    Parameters
    ----------
    limits : Limits
        ``frame_bytes_max`` is enforced by ZeroMQ itself before memory is taken.
    insecure_network : bool
        Whether to listen beyond this machine without encryption; must be said by name.
    io_threads : int
        Threads of ZeroMQ that move bytes, and encrypt them.
    keys : Keys or None
        Encrypt all links, and let only known keys connect; None encrypts nothing.
    same_host : bool or None
        Whether to meet processes of this machine at Unix sockets (`pslib.transport.same_host`); None: unless
        PSLIB_SAME_HOST is tcp.
    """

    def __init__(
        self,
        limits: Limits = _LIMITS,
        insecure_network: bool = False,
        io_threads: int = 1,
        keys: Keys | None = None,
        same_host: bool | None = None,
    ) -> None:
        self._limits, self._insecure, self._keys = limits, insecure_network, keys
        self._same_host = wanted() if same_host is None else same_host
        self._zap: ZapHandler | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        self._links: weakref.WeakSet[_Router] = weakref.WeakSet()

    def connect(self) -> ZmqClientLink:
        """A link that asks."""
        link = ZmqClientLink(self._context, self._limits, self._keys, self._same_host)
        self._links.add(link)
        return link

    def listen(self, address: str) -> ZmqServerLink:
        """A link that answers; ConfigurationError when the address is taken or open to the network."""
        if self._keys is None and not self._insecure and not is_loopback(address):
            raise ConfigurationError(
                f"refused to listen on {address}: other machines reach it and there are no keys; make some "
                "with pslib keys make and give --keys, or on a private network say --insecure-network"
            )
        if self._keys and not self._keys.listens:
            raise ConfigurationError(
                f"refused to listen on {address}: this key is a {self._keys.role}'s; give server.keys"
            )
        if self._keys and self._zap is None:
            self._zap = ZapHandler(self._context, self._keys.allowed)
        link = ZmqServerLink(self._context, address, self._limits, self._keys, self._same_host)
        self._links.add(link)
        return link

    def close(self) -> None:
        """End the threads of ZeroMQ when all links are closed; answers still queued get their moment."""
        if self._zap is not None:
            self._zap.close()
        for link in self._links:
            link.leave_frames()
        self._context.destroy(linger=0)
