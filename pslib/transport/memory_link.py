"""In-memory links with the behaviour of ZeroMQ's: threads of one process, no sockets.

Two traits of ZeroMQ matter and are kept: sending to an address without a listener is no error and the message
is lost, and replies to a closed link are dropped.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from pslib.errors import AddressInUseError
from pslib.wire.codec import Buffer

PeerT = TypeVar("PeerT")


class _Mailbox(Generic[PeerT]):
    """Queue with one reader that can be woken."""

    def __init__(self) -> None:
        self._messages: deque[tuple[PeerT, list[Buffer]]] = deque()
        self._woken = False
        self._changed = threading.Condition()

    def put(self, peer: PeerT, frames: list[Buffer]) -> None:
        with self._changed:
            self._messages.append((peer, frames))
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify()

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            if not self._messages and not self._woken:
                self._changed.wait(timeout_s)
            self._woken = False

    def full(self) -> bool:
        return bool(self._messages)

    def take(self) -> list[tuple[PeerT, list[Buffer]]]:
        with self._changed:
            messages = list(self._messages)
            self._messages.clear()
            return messages


class MemoryClientLink:
    """Client link to any address of its transport."""

    def __init__(self, transport: MemoryTransport, identity: bytes) -> None:
        self._transport, self._identity = transport, identity
        self.mailbox: _Mailbox[str] = _Mailbox()

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Put a message in the mailbox at an address; lost without a listener there."""
        server = self._transport.servers.get(peer)
        if server:
            server.mailbox.put(self._identity, list(frames))

    def send_all(self, messages: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """Send all messages."""
        for peer, frames in messages:
            self.send(peer, frames)

    def receive(self) -> list[tuple[str, list[Buffer]]]:
        """Return arrived replies."""
        return self.mailbox.take()

    def ready(self) -> bool:
        """Return whether a reply has arrived."""
        return self.mailbox.full()

    def wait(self, timeout_s: float) -> None:
        """Wait for a reply, for `wake`, or for the timeout."""
        self.mailbox.wait(timeout_s)

    def refusals(self) -> list[tuple[str, str]]:
        """Return no refusals: memory refuses no peer."""
        return []

    def forget(self, peer: str) -> None:
        """Do nothing: no state is kept of any peer."""

    def wake(self) -> None:
        """End a wait in another thread."""
        self.mailbox.wake()

    def close(self) -> None:
        """Close the mailbox."""
        self._transport.clients.pop(self._identity, None)


class MemoryServerLink:
    """Server link at one address of its transport."""

    def __init__(self, transport: MemoryTransport, address: str) -> None:
        self._transport, self.address = transport, address
        self.mailbox: _Mailbox[bytes] = _Mailbox()

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Send a reply to a client; lost when it has gone."""
        client = self._transport.clients.get(peer)
        if client:
            client.mailbox.put(self.address, list(frames))

    def send_all(self, messages: Sequence[tuple[bytes, Sequence[Buffer]]]) -> None:
        """Send all replies."""
        for peer, frames in messages:
            self.send(peer, frames)

    def poll(self, timeout_s: float) -> list[tuple[bytes, list[Buffer]]]:
        """Wait for a request; return arrived requests."""
        self.wait(timeout_s)
        return self.receive()

    def receive(self) -> list[tuple[bytes, list[Buffer]]]:
        """Return arrived requests."""
        return self.mailbox.take()

    def ready(self) -> bool:
        """Return whether a request has arrived."""
        return self.mailbox.full()

    def wait(self, timeout_s: float) -> None:
        """Wait for a request, for `wake`, or for the timeout."""
        self.mailbox.wait(timeout_s)

    def wake(self) -> None:
        """End a wait in another thread."""
        self.mailbox.wake()

    def close(self) -> None:
        """Stop listening; an address that another link has taken over meanwhile stays that link's."""
        if self._transport.servers.get(self.address) is self:
            del self._transport.servers[self.address]


class MemoryTransport:
    """Private in-memory network: links of different transports never meet."""

    def __init__(self) -> None:
        self.servers: dict[str, MemoryServerLink] = {}
        self.clients: dict[bytes, MemoryClientLink] = {}
        self._numbers = itertools.count(1)

    def connect(self) -> MemoryClientLink:
        """Create a client link."""
        identity = next(self._numbers).to_bytes(8, "big")
        self.clients[identity] = MemoryClientLink(self, identity)
        return self.clients[identity]

    def listen(self, address: str) -> MemoryServerLink:
        """Create a server link; a port of 0 becomes a free number.

        Raises
        ------
        AddressInUseError
            When another link listens there.
        """
        if address.endswith(":0"):
            address = f"{address[:-2]}:{next(self._numbers)}"
        if address in self.servers:
            raise AddressInUseError(f"can't listen on {address}: address already in use")
        self.servers[address] = MemoryServerLink(self, address)
        return self.servers[address]

    def close(self) -> None:
        """Do nothing: links share nothing."""
