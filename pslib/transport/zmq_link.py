"""ZeroMQ links; their socket is in router.py, its encryption in curve.py, its warnings in monitor.py.

ROUTER at both ends (draft sockets abort the process). ZeroMQ reconnects and finds dead links, but loses
queued messages in silence when a peer dies: `pslib.client.requests` resends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import zmq

from pslib.config import Limits
from pslib.errors import AddressInUseError, ConfigurationError
from pslib.process.held_signals import HeldSignals
from pslib.transport.addresses import is_loopback, is_ours, unix_address, wanted, wants_ipv6
from pslib.transport.curve import ZapHandler, encrypt_client, encrypt_server, peer_of
from pslib.transport.keys import Keys
from pslib.transport.monitor import Monitor, troubles
from pslib.transport.router import NOW, OPTIONS, Router
from pslib.wire.codec import Buffer

TURNS_A_CHECK = 64
"""Turns between checks of silent peers on a busy link; an idle one checks each time that nothing has come."""
SERVER_HEARTBEAT_MS = 10_000
"""Heartbeat interval of servers; clients send one every second. A server sends them too, less often: arriving
data defers ZeroMQ's timeout, so a peer that vanished while it was busy would stay for ever.
"""
SOCKETS_MAX = 65536
"""Maximum sockets of a context, whose default ends at a few hundred peers."""


class ZmqClientLink(Router):
    """One ROUTER that is connected to any number of addresses, each when first needed.

    With a socket for each address, every turn would poll all of them. DEALER, the usual client socket, cannot
    send to one address of many.
    """

    _held = HeldSignals

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
        self.peers: dict[bytes, str] = {}
        self._same_host = same_host
        self._unix: dict[str, str] = {}  # peers that are reached by a Unix socket, and its address
        self.silent: set[str] = set()
        self._turns = 0

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Queue a message for the peer at an address."""
        routing_id = self._ids.get(peer) or self._connect(peer)
        self.silent.add(peer)
        self._send(routing_id, frames)

    def send_all(self, messages: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """Queue all messages, in order."""
        for peer, frames in messages:
            self.send(peer, frames)

    def _connect(self, peer: str, same_host: bool = True) -> bytes:
        beside = unix_address(peer) if same_host and self._same_host else None
        where = beside if beside is not None and is_ours(beside) else peer
        self.is_empty = False  # ZeroMQ consumes its signals in any call
        self._connections += 1
        routing_id = b"p%d" % self._connections
        self._socket.setsockopt(zmq.CONNECT_ROUTING_ID, routing_id)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, OPTIONS[zmq.HEARTBEAT_IVL][0] if where == peer else 0)
        self._socket.setsockopt(zmq.IPV6, wants_ipv6(where))
        try:
            self._socket.connect(where)
        except zmq.ZMQError as error:
            raise ConfigurationError(f"address {peer!r}: {error}; expected tcp://HOST:PORT") from error
        if where != peer:
            self._unix[peer] = where
        self._ids[peer], self.peers[routing_id] = routing_id, peer
        return routing_id

    def _disconnect(self, peer: str) -> None:
        self.silent.discard(peer)
        self.is_empty = False
        del self.peers[self._ids.pop(peer)]
        with suppress(zmq.ZMQError):  # ZeroMQ has dropped it already
            self._socket.disconnect(self._unix.pop(peer, peer))

    def forget(self, peer: str) -> None:
        """Drop the queue of a peer that is gone: ZeroMQ would keep it as long as it tries to reconnect."""
        if peer in self._ids:
            self._disconnect(peer)

    def _leave_unix(self, peer: str) -> None:
        """Switch to TCP: if ZeroMQ found the name again, its owner would be unchecked."""
        was_silent = peer in self.silent
        self._disconnect(peer)
        self._connect(peer, same_host=False)
        if was_silent:
            self.silent.add(peer)

    def receive(self) -> list[tuple[str, list[Buffer]]]:
        """Return messages that have come from any peer."""
        taken, peers = self._receive(), self.peers
        if not taken:
            return []
        came = [(peers[sender], frames) for sender, frames in taken if sender in peers]
        if came:
            self.silent.difference_update([peer for peer, _frames in came])
        return came

    def refusals(self) -> list[tuple[str, str]]:
        """Return peers that refused the connection, and why; ZeroMQ gives up on some, so none are kept."""
        self._turns += 1
        if not self.silent or not (self.idle or self._turns % TURNS_A_CHECK == 0):
            return []
        told = list(troubles(self._monitor, self.silent, self._role).items())
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
        self._socket.close(linger=0)
        self.waker.close()


class ZmqServerLink(Router):
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
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, SERVER_HEARTBEAT_MS)
        if keys:
            encrypt_server(self._socket, keys)
            self._monitor = Monitor(self._socket)
        self._socket.setsockopt(zmq.IPV6, wants_ipv6(address))
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._close(linger_ms=0)
            taken = error.errno == zmq.EADDRINUSE
            raise (AddressInUseError if taken else ConfigurationError)(
                f"can't listen on {address}: {error}; choose another port or 0 for any free one"
            ) from error
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        beside = unix_address(self.address) if same_host else None
        if beside is not None:
            # clients send no heartbeats there, and get ours less often than this timeout
            self._socket.setsockopt(zmq.HEARTBEAT_TTL, 0)
            with suppress(zmq.ZMQError):  # the name is taken or forbidden: TCP is enough
                self._socket.bind(beside)

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Queue a reply."""
        self._send(peer, frames)

    def send_all(self, messages: Sequence[tuple[bytes, Sequence[Buffer]]]) -> None:
        """Queue all replies, in order."""
        for peer, frames in messages:
            self._send(peer, frames)

    def _sender(self) -> bytes | None:
        if self._monitor is None:
            return super()._sender()
        return peer_of(self._socket.recv(NOW, copy=False))

    def poll(self, timeout_s: float) -> list[tuple[bytes, list[Buffer]]]:
        """Wait for a message; return arrived messages."""
        if not self.ready():
            self.wait(timeout_s)
        return self.receive()

    def receive(self) -> list[tuple[bytes, list[Buffer]]]:
        """Return arrived messages."""
        came = self._receive()
        if self._monitor is not None:
            self._monitor.count_failures(self.address)
        return came

    def close(self) -> None:
        """Stop listening; give queued replies a moment to leave."""
        self._close(linger_ms=500)

    def _close(self, linger_ms: int) -> None:
        if self._monitor is not None and not self._socket.closed:
            self._monitor.close()
        self._socket.close(linger=linger_ms)
        self.waker.close()


_LIMITS = Limits()


class ZmqTransport:
    """Factory of ZeroMQ links in one context.

    Parameters
    ----------
    limits : Limits
        ``frame_bytes_max`` is enforced by ZeroMQ itself before memory is taken.
    insecure_network : bool
        Allow listening beyond this machine without encryption.
    io_threads : int
        Threads of ZeroMQ that move bytes, and encrypt them.
    keys : Keys or None
        Encrypt all links, and let only known keys connect; None encrypts nothing.
    same_host : bool or None
        Use Unix sockets to processes of this machine (`pslib.transport.addresses`); None: unless
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

    def connect(self) -> ZmqClientLink:
        """Create a client link."""
        return ZmqClientLink(self._context, self._limits, self._keys, self._same_host)

    def listen(self, address: str) -> ZmqServerLink:
        """Create a server link; ConfigurationError when the address is taken or open to the network."""
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
        return ZmqServerLink(self._context, address, self._limits, self._keys, self._same_host)

    def close(self) -> None:
        """End ZeroMQ's threads when all links are closed; queued replies are given a moment to leave."""
        if self._zap is not None:
            self._zap.close()
        self._context.destroy(linger=0)
