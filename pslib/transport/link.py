"""What sessions need of a transport; ZeroMQ and memory both give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pslib.wire.codec import Buffer

__all__ = ["ClientLink", "Peer", "ServerLink", "Transport"]


class Peer(bytes):
    """The identity of a connection, and the role of the key that it was opened with.

    A network without keys gives plain bytes: it knows no roles.
    """

    role: str

    def __new__(cls, identity: bytes, role: str) -> Peer:
        """Identity and role."""
        peer = super().__new__(cls, identity)
        peer.role = role
        return peer


class ClientLink(Protocol):
    """Sends to any number of addresses.

    `send`, `send_all`, `receive` and `close` come from one thread at a time, under a lock of the caller's.
    Beside them one thread may be in `wait`; `wake` comes from anywhere.
    """

    def send(self, peer: str, frames: Sequence[Buffer]) -> None:
        """Queue a message; a peer that is not there yet, or never, is not an error."""
        ...

    def send_all(self, messages: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """`send` of all, in their order."""
        ...

    def receive(self) -> list[tuple[str, list[Buffer]]]:
        """Messages that are here, or the first of many, with the addresses they came from; does not wait."""
        ...

    def ready(self) -> bool:
        """Whether something is here to receive."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes, for `wake`, or for the timeout.

        It may sleep beside a message unless `receive` came back empty before, and no `send` came after that:
        whoever sends looks whether the link is `ready`, and then receives or wakes.
        """
        ...

    def refusals(self) -> list[tuple[str, str]]:
        """Peers that can't be reached for a reason that has a name, and the reason; each time once.

        A wrong key, or encryption on one side only. The link tries again with the next message.
        """
        ...

    def forget(self, peer: str) -> None:
        """A peer is no more: what is queued for it takes no memory, and nobody looks for it any longer.

        Called as `send` is. One that was never sent anything is no error, and a later `send` goes there.
        """
        ...

    def wake(self) -> None:
        """End a `wait` in another thread at once, or the next one."""
        ...

    def close(self) -> None:
        """Give all sockets back."""
        ...


class ServerLink(Protocol):
    """Listens at one address; what it has in common with a `ClientLink` is called as there."""

    @property
    def address(self) -> str:
        """Where clients reach this link."""
        ...

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Queue an answer; a peer that has gone is not an error."""
        ...

    def send_all(self, messages: Sequence[tuple[bytes, Sequence[Buffer]]]) -> None:
        """`send` of all, in their order."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[bytes, list[Buffer]]]:
        """Wait, then receive: all that a link needs whose messages one thread takes and answers."""
        ...

    def receive(self) -> list[tuple[bytes, list[Buffer]]]:
        """Messages that are here, with the identity of their sender: a `Peer` where there are keys."""
        ...

    def ready(self) -> bool:
        """Whether something is here to receive."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes, for `wake`, or for the timeout."""
        ...

    def wake(self) -> None:
        """End a `wait` in another thread at once, or the next one."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Transport(Protocol):
    """Makes links."""

    def connect(self) -> ClientLink:
        """A link for a process that asks."""
        ...

    def listen(self, address: str) -> ServerLink:
        """A link for a process that answers.

        Raises
        ------
        ConfigurationError
            When the address can't be listened on; AddressInUseError where somebody else does.
        """
        ...

    def close(self) -> None:
        """Give back what links share; all of them must be closed by then."""
        ...
