"""Credit-based flow control: a bound on the bytes in flight to and from one server.

The pool of a server (`ClusterConfig.credit_bytes`) has two halves. One is shared out evenly among as many
clients as the cluster is set up for (one that joins beyond them adds a share): each may have its share of
bytes in flight to each server without a request. From the other half the server grants what does not fit a
share: a larger request, and every second copy of one that is not small (the first may be queued at a slow
server). A client that needs such a grant sends `Reserve`, and sends the request when that is answered. So a
stopped server receives no second copies, and its clients keep what does not fit until it goes on.

A request counts with its own bytes and those of its reply, from its sending until it is over for the client.
Credit that a client does not give back (it has vanished, or the message was lost) returns by itself after
`Timing.request_s`, when the client has given up too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

SMALL_BYTES = 16 << 10
"""Largest small request. Small requests pass larger ones that wait for credit, and may be sent again without
credit: a pull of 100 rows of 32 floats is 14 KB.
"""


class ClientShares:
    """Bytes that one client has in flight to each peer, and its requests that wait for room.

    Parameters
    ----------
    share_bytes : int
        For each peer; 0 is no limit. One eighth of it is kept for small requests.

    Attributes
    ----------
    small_bytes : int
        Requests up to this size are small.
    flying : dict of str to int
        Bytes in flight to each peer and back.
    waiting : dict of str to deque of (ticket, bytes)
        Requests that wait for room.
    """

    def __init__(self, share_bytes: int = 0) -> None:
        self.share_bytes, self.small_bytes = share_bytes, SMALL_BYTES
        self._costs: dict[int, int] = {}
        self.flying: dict[str, int] = {}
        self.waiting: dict[str, deque[tuple[int, int]]] = {}

    def in_flight_bytes(self, peer: str) -> int:
        """Return the bytes in flight to a peer and back."""
        return self.flying.get(peer, 0)

    @property
    def all_in_flight_bytes(self) -> int:
        """Return the bytes in flight to all peers and back."""
        return sum(self.flying.values())

    def is_beyond(self, cost: int) -> bool:
        """Return whether a request of this size never fits the share, so that the server must grant it."""
        return self.share_bytes > 0 and cost > self._most(cost)

    def enter(self, peer: str, ticket: int, cost: int) -> bool:
        """Return whether a request may go now; otherwise it waits until `leave` returns it."""
        if not self.has_room(peer, cost):
            self.waiting.setdefault(peer, deque()).append((ticket, cost))
            return False
        self._go(peer, ticket, cost)
        return True

    def enter_small(self, peer: str, ticket: int, cost: int) -> bool:
        """Enter a small request that has room; False: it is not one, and nothing has changed."""
        flying = self.flying.get(peer, 0) + cost
        if cost > self.small_bytes or 0 < self.share_bytes < flying:
            return False
        self._costs[ticket], self.flying[peer] = cost, flying
        return True

    def has_room(self, peer: str, cost: int) -> bool:
        """Return whether a request of this size may go now."""
        return self._fits(peer, cost) and not (cost > self.small_bytes and self.waiting.get(peer))

    def leave(self, peer: str, ticket: int) -> list[int]:
        """Remove a request that is over or cancelled; return the tickets of those that may go now."""
        if cost := self._costs.pop(ticket, 0):
            self.flying[peer] -= cost
        freed: list[int] = []
        waiting = self.waiting.get(peer)
        if not waiting:
            return freed
        self.waiting[peer] = waiting = deque(place for place in waiting if place[0] != ticket)
        while waiting and self._fits(peer, waiting[0][1]):
            self._go(peer, *waiting[0])
            freed.append(waiting.popleft()[0])
        return freed

    def forget(self, peer: str, tickets: Iterable[int]) -> None:
        """Drop a peer that is gone: its requests in flight and waiting count no longer.

        These are all its ``tickets``; they may `enter` again, to another peer.
        """
        for ticket in tickets:
            self._costs.pop(ticket, None)
        self.flying.pop(peer, None)
        self.waiting.pop(peer, None)

    def clear(self) -> None:
        """Drop all requests."""
        self._costs.clear()
        self.flying.clear()
        self.waiting.clear()

    def _go(self, peer: str, ticket: int, cost: int) -> None:
        self._costs[ticket] = cost
        self.flying[peer] = self.flying.get(peer, 0) + cost

    def _most(self, cost: int) -> int:
        return self.share_bytes if cost <= self.small_bytes else self.share_bytes - self.share_bytes // 8

    def _fits(self, peer: str, cost: int) -> bool:
        return not self.share_bytes or self.flying.get(peer, 0) + cost <= self._most(cost)


@dataclass(slots=True)
class _CreditRequest:
    """Request for a grant; ``answer_to`` is the request_id of its last `Reserve`."""

    answer_to: int
    bytes: int
    asked_s: float


Name = tuple[bytes, int]
"""Peer, and the request_id that the reserved request will have."""


class CreditPool:
    """Pool of the credit that a server grants itself, half of its total.

    Parameters
    ----------
    pool_bytes : int
        0 is no limit. A request that is larger is granted when nothing else is.
    hold_s : float
        Time after which a grant returns by itself, and a request that was not repeated is dropped.
    """

    def __init__(self, pool_bytes: int = 0, hold_s: float = 60.0) -> None:
        self.pool_bytes, self.hold_s = pool_bytes, hold_s
        self.granted_bytes = 0
        self._held: dict[Name, tuple[int, float]] = {}
        self._credit_requests: dict[Name, _CreditRequest] = {}
        self._now_s = 0.0

    def reserve(self, name: Name, answer_to: int, size: int) -> list[tuple[Name, int]]:
        """Request ``size`` bytes; return the grants to send now: (name, request_id), oldest request first."""
        if name in self._held:
            return [(name, answer_to)]
        self._credit_requests[name] = _CreditRequest(
            answer_to, size, self._now_s
        )  # a repeated request keeps its place
        return self._grant()

    def give_back(self, name: Name) -> list[tuple[Name, int]]:
        """End a reserved request; return the grants to send now."""
        self._credit_requests.pop(name, None)
        size, _since = self._held.pop(name, (0, 0.0))
        self.granted_bytes -= size
        return self._grant()

    def summary(self) -> dict[str, int]:
        """Return the bytes of the pool, the granted and the requested bytes, and the number of requests."""
        return {
            "credit_bytes": self.pool_bytes,
            "credit_granted_bytes": self.granted_bytes,
            "credit_wished_bytes": sum(request.bytes for request in self._credit_requests.values()),
            "credit_wishes": len(self._credit_requests),
        }

    def tick(self, now_s: float) -> list[tuple[Name, int]]:
        """Take back expired grants; return the grants to send now."""
        self._now_s = now_s
        if not self._credit_requests and not self._held:  # the common case
            return []
        for name in [
            name for name, request in self._credit_requests.items() if request.asked_s + self.hold_s < now_s
        ]:
            del self._credit_requests[name]
        late = [name for name, (_size, since_s) in self._held.items() if since_s + self.hold_s < now_s]
        return [answer for name in late for answer in self.give_back(name)]

    def _grant(self) -> list[tuple[Name, int]]:
        granted = []
        for name, request in list(self._credit_requests.items()):
            if (
                self.granted_bytes
                and self.pool_bytes
                and self.granted_bytes + request.bytes > self.pool_bytes
            ):
                break  # in order: a large one must not starve
            del self._credit_requests[name]
            self._held[name] = request.bytes, self._now_s
            self.granted_bytes += request.bytes
            granted.append((name, request.answer_to))
        return granted
