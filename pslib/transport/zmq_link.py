"""ZeroMQ links; its encryption stands in curve.py beside this file, its warnings in monitor.py.

ROUTER and DEALER only (draft sockets abort the process). ZeroMQ reconnects and finds dead links, but loses
queued messages in silence when a peer dies: resending is the business of `pslib.protocol.requests`.
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections.abc import Iterator, Sequence

import zmq

from pslib.config import Limits
from pslib.errors import ConfigurationError
from pslib.protocol.codec import Buffer
from pslib.transport.curve import ZapHandler, encrypt_client, encrypt_server, peer_of
from pslib.transport.keys import Keys
from pslib.transport.monitor import Monitor, trouble

__all__ = ["ZmqTransport"]

POLL_BATCH_MAX = 64
"""Messages taken from one socket before others get their turn."""
POLLS_A_LOOK = 64
"""A busy link looks this often why some peer is silent; an idle one at each of its polls."""

# option: (value, why)
_COMMON: dict[int, tuple[int, str]] = {
    zmq.LINGER: (
        0,
        "the default -1 hangs at exit when a peer is dead; what must arrive is acknowledged anyway",
    ),
    zmq.HEARTBEAT_IVL: (1000, "without it a cut cable raises no event at all"),
    zmq.HEARTBEAT_TIMEOUT: (5000, "a machine that is short of CPU answers late"),
    zmq.HEARTBEAT_TTL: (5000, "the same for the other side"),
    zmq.CONNECT_TIMEOUT: (3000, "the kernel's own is 127 s, seen after a restarted peer"),
    zmq.RECONNECT_IVL: (50, "a restarted peer is found quickly"),
    zmq.RECONNECT_IVL_MAX: (2000, "hundreds of clients must not storm it"),
    zmq.SNDHWM: (1000, "bounds the queue to a dead peer"),
    zmq.RCVHWM: (1000, "the same on the way in"),
    zmq.HANDSHAKE_IVL: (10000, "a connection that says nothing is dropped"),
}
_ROUTER: dict[int, tuple[int, str]] = {
    zmq.ROUTER_HANDOVER: (0, "else anybody who guesses an identity gets the answers of its owner"),
    zmq.ROUTER_MANDATORY: (1, "an answer to a vanished peer is seen, not dropped in silence"),
    zmq.BACKLOG: (1024, "hundreds of trainers connect at once"),
}
SOCKETS_MAX = 65536
"""A context's default ends at a few hundred peers."""


class _Waker:
    """An event file descriptor that ends a poll.

    `wake` comes from any thread, also after `close`: by then the number of the descriptor may belong to
    somebody else's file, so both look at ``_open`` under a lock.
    """

    def __init__(self, poller: zmq.Poller) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._open = True
        self._lock = threading.Lock()
        poller.register(self.fd, zmq.POLLIN)

    def wake(self) -> None:
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def drain(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)


def _receive(socket: zmq.Socket[bytes]) -> list[zmq.Frame] | None:
    try:
        return socket.recv_multipart(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None


def _buffers(frames: Sequence[zmq.Frame]) -> list[Buffer]:
    return [frame.buffer for frame in frames]


def _send(socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
    try:
        socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
    except zmq.Again:  # the queue to this peer is full: it is slow or dead, and the request is sent again
        return
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise


def _come(
    poller: zmq.Poller, waker: _Waker, timeout_s: float
) -> Iterator[tuple[zmq.Socket[bytes], list[zmq.Frame]]]:
    """Messages that have come, and the socket of each; waits for one, for the waker, or for the timeout."""
    for source, _event in poller.poll(max(0, int(timeout_s * 1000))):
        if not isinstance(source, zmq.Socket):
            waker.drain()
            continue
        for _ in range(POLL_BATCH_MAX):
            frames = _receive(source)
            if frames is None:
                break
            yield source, frames


class ZmqClientLink:
    """One DEALER an address, made when first needed."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], limits: Limits, keys: Keys | None = None
    ) -> None:
        self._context, self._limits, self._keys = context, limits, keys
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._peers: dict[zmq.Socket[bytes], str] = {}
        self._monitors: dict[str, Monitor] = {}
        self._silent: set[str] = set()
        self._refusals: list[tuple[str, str]] = []
        self._polls = 0
        self._poller = zmq.Poller()
        self._waker = _Waker(self._poller)

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Queue a message for the peer at an address."""
        socket = self._sockets.get(peer)
        if socket is None:
            socket = self._connect(peer)
        self._silent.add(peer)
        _send(socket, frames)

    def _connect(self, peer: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        for option, (value, _why) in _COMMON.items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.frame_bytes_max)
        if self._keys:
            encrypt_client(socket, self._keys)
        monitor = Monitor(socket)
        try:
            socket.connect(peer)
        except zmq.ZMQError as error:
            monitor.close()
            socket.close()
            raise ConfigurationError(f"address {peer!r}: {error}; expected tcp://HOST:PORT") from error
        self._sockets[peer], self._peers[socket], self._monitors[peer] = socket, peer, monitor
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def poll(self, timeout_s: float) -> list[tuple[str, list[Buffer]]]:
        """Messages that have come from any peer."""
        came = [
            (self._peers[socket], _buffers(frames))
            for socket, frames in _come(self._poller, self._waker, timeout_s)
        ]
        self._silent.difference_update([peer for peer, _frames in came])
        self._polls += 1
        if self._silent and (not came or self._polls % POLLS_A_LOOK == 0):
            self._look()
        return came

    def _look(self) -> None:
        """See why the silent are silent; ZeroMQ gives up for good on some, so their sockets are not kept."""
        role = self._keys.role if self._keys else None
        for peer in tuple(self._silent):
            reason = trouble(self._monitors[peer], peer, role)
            if reason is not None:
                self._refusals.append((peer, reason))
                self._disconnect(peer)

    def _disconnect(self, peer: str) -> None:
        socket = self._sockets.pop(peer)
        self._silent.discard(peer)
        self._poller.unregister(socket)
        del self._peers[socket]
        self._monitors.pop(peer).close()
        socket.close(linger=0)

    def refusals(self) -> list[tuple[str, str]]:
        """Peers that could not be connected, and why."""
        told, self._refusals = self._refusals, []
        return told

    def wake(self) -> None:
        """End a poll in another thread."""
        self._waker.wake()

    def close(self) -> None:
        """Close all sockets; queued messages are dropped."""
        for peer in tuple(self._sockets):
            self._disconnect(peer)
        self._waker.close()


class ZmqServerLink:
    """One ROUTER."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        limits: Limits,
        keys: Keys | None = None,
    ) -> None:
        self._monitor: Monitor | None = None
        self._socket = context.socket(zmq.ROUTER)
        for option, (value, _why) in (_COMMON | _ROUTER).items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes_max)
        if keys:
            encrypt_server(self._socket, keys)
            self._monitor = Monitor(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._close(linger_ms=0)
            raise ConfigurationError(
                f"can't listen on {address}: {error}; choose another port or 0 for any free one"
            ) from error
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._waker = _Waker(self._poller)

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Queue an answer."""
        _send(self._socket, [peer, *frames])

    def poll(self, timeout_s: float) -> list[tuple[bytes, list[Buffer]]]:
        """Messages that have come."""
        came: list[tuple[bytes, list[Buffer]]] = []
        for _socket, frames in _come(self._poller, self._waker, timeout_s):
            peer = frames[0].bytes if self._monitor is None else peer_of(frames[0])
            if peer is not None:
                came.append((peer, _buffers(frames[1:])))
        if self._monitor is not None:
            self._monitor.count_failures(self.address)
        return came

    def wake(self) -> None:
        """End a poll in another thread."""
        self._waker.wake()

    def close(self) -> None:
        """Stop listening; give what is queued a moment to leave."""
        self._close(linger_ms=500)
        self._waker.close()

    def _close(self, linger_ms: int) -> None:
        if self._monitor is not None and not self._socket.closed:
            self._monitor.close()
        self._socket.close(linger=linger_ms)


def is_loopback(address: str) -> bool:
    """Whether an address such as ``tcp://127.0.0.1:0`` can be reached from this machine only."""
    if not address.startswith("tcp://"):
        return address.startswith(("ipc://", "inproc://"))
    host = address[len("tcp://") :].rsplit(":", 1)[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    """

    def __init__(
        self,
        limits: Limits = _LIMITS,
        insecure_network: bool = False,
        io_threads: int = 1,
        keys: Keys | None = None,
    ) -> None:
        self._limits, self._insecure, self._keys = limits, insecure_network, keys
        self._zap: ZapHandler | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)

    def connect(self) -> ZmqClientLink:
        """A link that asks."""
        return ZmqClientLink(self._context, self._limits, self._keys)

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
        return ZmqServerLink(self._context, address, self._limits, self._keys)

    def close(self) -> None:
        """End the threads of ZeroMQ when all links are closed; answers still queued get their moment."""
        if self._zap is not None:
            self._zap.close()
        self._context.destroy(linger=0)
