"""Table of open requests, each resent until it is answered or expires.

ZeroMQ loses queued messages in silence when a peer dies, so every request is resent here with a new
``request_id``. All attempts of one request stay valid until one of them is answered; replies to requests that
are over are dropped. Retries of pushes happen here, and requests wait here for credit
(`pslib.wire.flow_control`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from pslib.config import Timing
from pslib.wire.codec import Buffer, Codec
from pslib.wire.fields import Message
from pslib.wire.flow_control import ClientShares
from pslib.wire.messages import Push, Reserve


class Outgoing(NamedTuple):
    """Instruction to send frames to the peer at an address."""

    peer: str
    frames: list[Buffer]


@dataclass(frozen=True, slots=True)
class Expired:
    """Request that was not answered in time."""

    ticket: int
    peer: str
    waited_s: float
    why: str = ""
    """Last refusal of the peer."""


@dataclass(slots=True)
class Request:
    """Open request and its attempts."""

    ticket: int
    peer: str
    message: Message
    started_s: float
    deadline_s: float
    next_try_s: float
    pause_s: float
    cost: int = 0
    """Bytes that count against the credit of its peer; 0: it needs none."""
    why: str = ""
    """Reason of the peer's last refusal for now."""
    refused: bool = False
    """True if the peer has refused since the last attempt."""
    sent_s: float = 0.0
    """Time of the first attempt."""
    attempts: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    """Request ids of attempts for which credit was, or is, requested from the peer."""
    reserves: list[int] = field(default_factory=list)
    """Request ids of the `Reserve` messages; a server answers the last, or none while its reply is in flight.
    """
    patient_until_s: float = field(init=False)
    """The deadline while no peer refuses it."""

    def __post_init__(self) -> None:
        self.patient_until_s = self.deadline_s


SLOW_FACTOR = 3.0
"""Retry delay as a multiple of the peer's usual reply time: second copies would be more work for a peer that
is slow because it is overloaded. A lost request then waits as long, at most a sixth of its patience.
"""


class RequestTable:
    """Table of all open requests of one process, to any number of peers.

    Parameters
    ----------
    codec : Codec
        Encodes each attempt under its own request_id.
    timing : Timing
        ``retry_s``, ``retry_max_s`` and ``request_s``.
    first_request_id : int
        First id; a process gives a random number so that replies to a predecessor match nothing.
    share_bytes : int
        Limit of requests with an ``answer_bytes`` and their replies, in flight to one peer; 0 is no limit.

    Attributes
    ----------
    due_s : float
        `tick` has nothing to do before; it may have nothing to do then either.
    space_s : float
        Limit of retries at a peer that has no space for its log. The patience of a request may be longer,
        for a peer that dies and comes back (`ClusterConfig.asking`).
    """

    def __init__(self, codec: Codec, timing: Timing, first_request_id: int = 1, share_bytes: int = 0) -> None:
        self.codec, self.timing = codec, timing
        self.shares = ClientShares(share_bytes)
        self.outbox: list[Outgoing] = []
        self.resent = 0
        self.pushes_resent = 0
        self._next_id = first_request_id
        self._next_ticket = 1
        self._open: dict[int, Request] = {}
        self._by_attempt: dict[int, Request] = {}
        self._took_s: dict[str, float] = {}
        self._by_reserve: dict[int, tuple[Request, int]] = {}
        self._moved: dict[str, str] = {}
        self._now_s = 0.0
        self.space_s = inf
        self.unsent_bytes = 0
        """Bytes of requests that wait for credit, or for their time, with their replies."""
        self.due_s = inf

    def __len__(self) -> int:
        return len(self._open)

    def start(
        self,
        now_s: float,
        peer: str,
        message: Message,
        delay_s: float = 0.0,
        patience_s: float | None = None,
        answer_bytes: int | None = None,
    ) -> int:
        """Send ``message`` to ``peer`` until it is answered; return its ticket.

        It is sent after ``delay_s`` and, with ``answer_bytes``, when there is credit for its own bytes and
        those of its reply. It expires ``patience_s`` from now.

        Raises
        ------
        LocalProtocolError
            When the message cannot be encoded; then nothing is sent and nothing is recorded.
        """
        frames = self.codec.encode(self._next_id, message)  # first, see Raises
        peer = self._moved.get(peer, peer)
        patience_s = self.timing.request_s if patience_s is None else patience_s
        took_s = SLOW_FACTOR * self._took_s.get(peer, 0.0)
        pause_s = max(self.timing.retry_s, min(took_s, patience_s / 6))
        request = Request(
            self._next_ticket, peer, message, now_s, now_s + patience_s, now_s + delay_s, pause_s
        )
        if answer_bytes is not None:
            request.cost = answer_bytes + (len(frames[0]) if len(frames) == 1 else sum(map(len, frames)))
            self.unsent_bytes += request.cost
        self._next_ticket += 1
        self._open[request.ticket] = request
        if delay_s <= 0:
            self._begin(now_s, request, frames)
        self.due_s = min(self.due_s, request.next_try_s, request.deadline_s)
        return request.ticket

    def _begin(self, now_s: float, request: Request, frames: list[Buffer]) -> None:
        """Send a request for the first time, or reserve credit, or queue it for credit."""
        self._now_s = now_s
        if request.cost and self.shares.enter_small(request.peer, request.ticket, request.cost):
            self._attempt(now_s, request, frames)
            return
        # the parts of a step that are in flight may be answered only after this one
        in_step = isinstance(request.message, Push) and bool(request.message.sync)
        full = in_step and not self.shares.has_room(request.peer, request.cost)
        if request.cost and (full or self.shares.is_beyond(request.cost)):
            self._reserve(now_s, request)
        elif request.cost and not self.shares.enter(request.peer, request.ticket, request.cost):
            request.next_try_s = inf
        else:
            self._attempt(now_s, request, frames)

    def receive(self, request_id: int, now_s: float | None = None) -> int | None:
        """Return the ticket of a reply, which is over now; None for a reply that comes too late.

        With ``now_s`` the reply time is measured, and sets the retry delay of later requests to the peer.

        Also None for a grant of credit: its request is sent now.
        """
        request = self._by_attempt.get(request_id)
        if request is None:
            self._granted(request_id)
            return None
        if now_s is not None:
            took_s, known_s = now_s - request.sent_s, self._took_s.get(request.peer, 0.0)
            self._took_s[request.peer] = max(took_s, known_s + (took_s - known_s) / 8)
        self.cancel(request.ticket)
        return request.ticket

    def refused_for_now(self, request_id: int, why: str) -> bool:
        """Retry a request for which a peer has no space yet, as if unanswered. False: it is not open.

        The limit ``space_s`` counts from the first refusal.
        """
        request = self._by_attempt.get(request_id)
        if request is None:
            return False
        request.deadline_s = min(request.deadline_s, self._now_s + self.space_s)
        self.due_s = min(self.due_s, request.deadline_s)
        request.why, request.refused = why, True
        return True

    def cancel(self, ticket: int) -> None:
        """Cancel a request; a no-op when it is over."""
        request = self._open.pop(ticket, None)
        if not request:
            return
        if len(request.attempts) == 1 and not request.reserves:  # the common case
            del self._by_attempt[request.attempts[0]]
        else:
            self._forget_attempts(request)
        if not request.attempts:
            self.unsent_bytes -= request.cost
        for reserved in request.reserved:
            self._tell(request.peer, Reserve(reserved, 0, 0))
        if request.cost:
            for freed in self.shares.leave(request.peer, ticket):
                self._go(self._open[freed])

    def _forget_attempts(self, request: Request) -> None:
        """Accept no reply to the attempts of a request."""
        for attempt in request.attempts:
            del self._by_attempt[attempt]
        for reserve in request.reserves:  # otherwise each unanswered one would keep the message for good
            self._by_reserve.pop(reserve, None)

    def redirect(self, now_s: float, old: str, new: str) -> int:
        """Send the open requests at ``old`` to its successor at ``new``, under the same names.

        Later replies of ``old`` are ignored, as is its credit; requests to ``old`` from now on go to ``new``.
        Each request has its whole patience again. Returns how many there were.
        """
        self._moved.pop(new, None)  # a port is used again
        self._moved = {before: new if after == old else after for before, after in self._moved.items()}
        self._moved[old] = new
        self._took_s.pop(old, None)
        waiting = [request for request in self._open.values() if request.peer == old]
        self.shares.forget(old, (request.ticket for request in waiting))
        for request in waiting:
            self._forget_attempts(request)
            if request.attempts:
                self.unsent_bytes += request.cost
            begun = bool(request.attempts or request.reserved) or request.next_try_s == inf
            request.attempts, request.reserves, request.reserved = [], [], []
            request.peer, request.pause_s = new, self.timing.retry_s
            request.patient_until_s = max(request.patient_until_s, now_s + self.timing.request_s)
            self._wait_for_answers(request)
            if begun:
                self._begin(now_s, request, self.codec.encode(self._next_id, request.message))
            self.due_s = min(self.due_s, request.next_try_s)
        return len(waiting)

    def are_here(self, addresses: Iterable[str]) -> None:
        """Record that these addresses are live: a process on a reused port has no successor."""
        for address in addresses:
            self._moved.pop(address, None)

    def cancel_all(self) -> None:
        """Cancel all requests; queued ones are not sent."""
        self._open.clear()
        self._by_attempt.clear()
        self._by_reserve.clear()
        self.shares.clear()
        self.unsent_bytes = 0
        self.outbox.clear()

    def waits_for(self, peer: str) -> list[int]:
        """Return the tickets of open requests to this peer."""
        return [request.ticket for request in self._open.values() if request.peer == peer]

    def give_up(self, peer: str) -> list[int]:
        """Cancel all open requests to this peer; return their tickets."""
        tickets = self.waits_for(peer)
        for ticket in tickets:
            self.cancel(ticket)
        return tickets

    def tick(self, now_s: float) -> list[Expired]:
        """Resend due requests; remove and return the expired ones."""
        self._now_s = now_s
        expired: list[Expired] = []
        if now_s < self.due_s:  # the common case: hundreds of open requests are not scanned in every turn
            return expired
        for request in list(self._open.values()):
            if now_s >= request.deadline_s:
                self.cancel(request.ticket)
                waited_s = now_s - request.started_s
                expired.append(Expired(request.ticket, request.peer, waited_s, request.why))
            elif now_s >= request.next_try_s:
                self._again(now_s, request)
        self.due_s = min((min(one.next_try_s, one.deadline_s) for one in self._open.values()), default=inf)
        return expired

    def _again(self, now_s: float, request: Request) -> None:
        """Send a due request: the first attempt, or a retry."""
        if request.why and not request.refused:  # a peer that refuses is alive; this one is silent now
            self._wait_for_answers(request)
        request.refused = False
        if not request.attempts and not request.reserved:
            self._begin(now_s, request, self.codec.encode(self._next_id, request.message))
        elif self.shares.share_bytes and (request.cost > self.shares.small_bytes or not request.attempts):
            self._reserve(now_s, request)
        else:
            self._go(request)

    def _wait_for_answers(self, request: Request) -> None:
        """Clear a refusal for lack of space, and restore the whole patience."""
        request.why, request.refused, request.deadline_s = "", False, request.patient_until_s

    def waiting(self, now_s: float, longer_than_s: float) -> list[tuple[str, str, float]]:
        """Return (peer, what, seconds) of every request that has waited longer than ``longer_than_s``.

        ``what`` is the kind of the message and, while it cannot be sent, that it waits for credit.
        """
        return [
            (request.peer, self._told(request), now_s - request.started_s)
            for request in self._open.values()
            if now_s - request.started_s > longer_than_s
        ]

    def _told(self, request: Request) -> str:
        kind = f"{request.message.kind}: {request.why}" if request.why else request.message.kind
        if request.attempts or not request.cost:
            return kind
        flying, share = self.shares.in_flight_bytes(request.peer), self.shares.share_bytes
        return f"{kind} of {request.cost:,} bytes, for credit: {flying:,} of {share:,} are in flight"

    def _go(self, request: Request) -> None:
        self._count_resent(request)
        self._attempt(self._now_s, request, self.codec.encode(self._next_id, request.message))

    def _count_resent(self, request: Request) -> None:
        if request.attempts:
            self.resent += 1
            self.pushes_resent += isinstance(request.message, Push)

    def _attempt(self, now_s: float, request: Request, frames: list[Buffer]) -> None:
        """Send frames that were encoded under the next request_id."""
        self._sent(request, self._take_id(), frames)
        self._put_off(now_s, request)

    def _sent(self, request: Request, request_id: int, frames: list[Buffer]) -> None:
        if not request.attempts:
            self.unsent_bytes -= request.cost
            request.sent_s = self._now_s
        request.attempts.append(request_id)
        self._by_attempt[request_id] = request
        self.outbox.append(Outgoing(request.peer, frames))

    def _put_off(self, now_s: float, request: Request) -> None:
        request.next_try_s = now_s + request.pause_s
        self.due_s = min(self.due_s, request.next_try_s)
        request.pause_s = min(request.pause_s * 2, self.timing.retry_max_s)

    def _take_id(self) -> int:
        request_id = self._next_id
        self._next_id = (self._next_id + 1) % (1 << 64) or 1  # 0 is the id of replies to undecodable messages
        return request_id

    # --- credit -------------------------------------------------------------------------------------------

    def _reserve(self, now_s: float, request: Request) -> None:
        """Reserve credit for the next attempt, or repeat the reservation for the same one."""
        if not request.reserved or request.reserved[-1] in self._by_attempt:
            request.reserved.append(self._take_id())
        last = request.attempts[-1] if request.attempts else 0
        reserve = self._tell(request.peer, Reserve(request.reserved[-1], request.cost, last))
        self._by_reserve[reserve] = request, request.reserved[-1]
        request.reserves.append(reserve)
        self._put_off(now_s, request)

    def _granted(self, reserve: int) -> None:
        """Send the request of a grant, unless it is over or was sent by an earlier grant."""
        request, request_id = self._by_reserve.pop(reserve, (None, 0))
        if request is None or request.ticket not in self._open or request_id in self._by_attempt:
            return
        self._count_resent(request)
        self._sent(request, request_id, self.codec.encode(request_id, request.message))

    def _tell(self, peer: str, message: Message) -> int:
        """Send a message once, without retries; return its request_id."""
        request_id = self._take_id()
        self.outbox.append(Outgoing(peer, self.codec.encode(request_id, message)))
        return request_id
