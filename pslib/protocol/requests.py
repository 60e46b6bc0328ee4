"""Requests that are asked again until they are answered or their time is up.

ZeroMQ loses queued messages in silence when a peer dies, so every request is resent here with a new
``request_id``; all attempts of one request stay valid until one of them is answered, and answers to
requests that are over are dropped. This is where "push is retried".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pslib.config import Timing
from pslib.protocol.codec import Buffer, Codec
from pslib.protocol.messages import Message

__all__ = ["Expired", "Outgoing", "RequestTable"]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An instruction to send frames to the peer at an address."""

    peer: str
    frames: list[Buffer]


@dataclass(frozen=True, slots=True)
class Expired:
    """A request that nobody has answered in time."""

    ticket: int
    peer: str
    waited_s: float


@dataclass(slots=True)
class _Request:
    ticket: int
    peer: str
    message: Message
    started_s: float
    deadline_s: float
    next_try_s: float
    pause_s: float
    attempts: list[int] = field(default_factory=list)


class RequestTable:
    """All unanswered requests of one process, to any number of peers.

    Parameters
    ----------
    codec : Codec
        Encodes each attempt under its own request_id.
    timing : Timing
        ``retry_s``, ``retry_max_s`` and ``request_s``.
    first_request_id : int
        Where ids start; a process gives a random number so that answers to a predecessor match nothing.
    """

    def __init__(self, codec: Codec, timing: Timing, first_request_id: int = 1) -> None:
        self.codec, self.timing = codec, timing
        self.outbox: list[Outgoing] = []
        self.resent = 0
        self._next_id = first_request_id
        self._next_ticket = 1
        self._open: dict[int, _Request] = {}
        self._by_attempt: dict[int, _Request] = {}

    def __len__(self) -> int:
        return len(self._open)

    def start(
        self, now_s: float, peer: str, message: Message, delay_s: float = 0.0, patience_s: float | None = None
    ) -> int:
        """Send ``message`` to ``peer`` (after ``delay_s``) until it is answered; return its ticket.

        Raises
        ------
        LocalProtocolError
            When the message can't be encoded; then nothing is sent and nothing is remembered.
        """
        frames = self.codec.encode(self._next_id, message)  # before all else: see Raises
        patience_s = self.timing.request_s if patience_s is None else patience_s
        request = _Request(
            self._next_ticket, peer, message, now_s, now_s + patience_s, now_s + delay_s, self.timing.retry_s
        )
        self._next_ticket += 1
        self._open[request.ticket] = request
        if delay_s <= 0:
            self._attempt(now_s, request, frames)
        return request.ticket

    def receive(self, request_id: int) -> int | None:
        """The ticket that an answer belongs to, which is over now; None for an answer that comes too late."""
        request = self._by_attempt.get(request_id)
        if request is None:
            return None
        self.cancel(request.ticket)
        return request.ticket

    def cancel(self, ticket: int) -> None:
        """Stop asking; a no-op when the request is over."""
        request = self._open.pop(ticket, None)
        if request:
            for attempt in request.attempts:
                del self._by_attempt[attempt]

    def cancel_all(self) -> None:
        """Stop asking anybody anything; what is queued is not sent."""
        self._open.clear()
        self._by_attempt.clear()
        self.outbox.clear()

    def give_up(self, peer: str) -> list[int]:
        """Ask this peer nothing any more of what it has not answered; returns the tickets of that."""
        tickets = [request.ticket for request in self._open.values() if request.peer == peer]
        for ticket in tickets:
            self.cancel(ticket)
        return tickets

    def tick(self, now_s: float) -> list[Expired]:
        """Send again what is due; return, and forget, what nobody has answered in time."""
        expired = []
        for request in list(self._open.values()):
            if now_s >= request.deadline_s:
                self.cancel(request.ticket)
                expired.append(Expired(request.ticket, request.peer, now_s - request.started_s))
            elif now_s >= request.next_try_s:
                self.resent += bool(request.attempts)
                self._attempt(now_s, request, self.codec.encode(self._next_id, request.message))
        return expired

    def waiting(self, now_s: float, longer_than_s: float) -> list[tuple[str, str, float]]:
        """(peer, message kind, seconds) of every request that has waited longer than ``longer_than_s``."""
        return [
            (request.peer, request.message.kind, now_s - request.started_s)
            for request in self._open.values()
            if now_s - request.started_s > longer_than_s
        ]

    def _attempt(self, now_s: float, request: _Request, frames: list[Buffer]) -> None:
        """Send frames that were encoded under the next request_id."""
        request_id = self._next_id
        self._next_id = (self._next_id + 1) % (1 << 64) or 1  # 0 answers what could not be read
        request.attempts.append(request_id)
        self._by_attempt[request_id] = request
        request.next_try_s = now_s + request.pause_s
        request.pause_s = min(request.pause_s * 2, self.timing.retry_max_s)
        self.outbox.append(Outgoing(request.peer, frames))
