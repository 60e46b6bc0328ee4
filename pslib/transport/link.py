"""Transport interfaces of the sessions, implemented by ZeroMQ and in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pslib.wire.codec import Buffer


class Peer(bytes):
    """Identity of a connection, with the role of the key that it was opened with.

    A network without keys gives plain bytes: it has no roles.
    """

    role: str

    def __new__(cls, identity: bytes, role: str) -> Peer:
        """Create a peer from identity and role."""
        peer = super().__new__(cls, identity)
        peer.role = role
        return peer


class ClientLink(Protocol):
    """Link that sends to any number of addresses.

    `send`, `send_all`, `receive` and `close` come from one thread at a time, under a lock of the caller's.
    Beside them one thread may be in `wait`; `wake` comes from any thread.
    """

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Queue a message; a peer that is not there yet, or never, is not an error."""
        ...

    def send_all(self, messages: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """Queue all messages, in order."""
        ...

    def receive(self) -> list[tuple[str, list[Buffer]]]:
        """Return arrived messages, or the first of many, with their senders' addresses; does not wait."""
        ...

    def ready(self) -> bool:
        """Return whether a message can be received."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a message comes, for `wake`, or for the timeout.

        It may sleep beside a message unless `receive` came back empty before, and no `send` came after that:
        a sender checks whether the link is `ready`, and then receives or wakes.
        """
        ...

    def refusals(self) -> list[tuple[str, str]]:
        """Return unreachable peers with a named reason; each refusal once.

        Reasons are a wrong key, or encryption on one side only. The link tries again with the next message.
        """
        ...

    def forget(self, peer: str) -> None:
        """Drop a peer that is gone: free its queue, and stop reconnecting.

        Called as `send` is. A peer that was never sent anything is no error, and a later `send` goes there.
        """
        ...

    def wake(self) -> None:
        """End a `wait` in another thread at once, or the next one."""
        ...

    def close(self) -> None:
        """Close all sockets."""
        ...


class ServerLink(Protocol):
    """Link that listens at one address; the methods shared with `ClientLink` are called as there."""

    @property
    def address(self) -> str:
        """Address of this link for clients."""
        ...

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Queue a reply; a peer that has gone is not an error."""
        ...

    def send_all(self, messages: Sequence[tuple[bytes, Sequence[Buffer]]]) -> None:
        """Queue all replies, in order."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[bytes, list[Buffer]]]:
        """Wait, then receive: sufficient for a link whose messages one thread takes and answers."""
        ...

    def receive(self) -> list[tuple[bytes, list[Buffer]]]:
        """Return arrived messages, with the identity of their sender: a `Peer` where there are keys."""
        ...

    def ready(self) -> bool:
        """Return whether a message can be received."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a message comes, for `wake`, or for the timeout."""
        ...

    def wake(self) -> None:
        """End a `wait` in another thread at once, or the next one."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Transport(Protocol):
    """Factory of links."""

    def connect(self) -> ClientLink:
        """Create a link for a process that sends requests."""
        ...

    def listen(self, address: str) -> ServerLink:
        """Create a link for a process that answers requests.

        Raises
        ------
        ConfigurationError
            When the address can't be listened on; AddressInUseError where another process listens.
        """
        ...

    def close(self) -> None:
        """Free what links share; all of them must be closed by then."""
        ...
