"""Servers that shall own nothing and go, as the coordinator sees them: a pure machine.

Such a server leaves the map as soon as it owns nothing, and may go when everybody has heard of that and what
was on its way to it has been refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pslib.coordinator.membership import Membership

__all__ = ["Decommission"]

LEAVE_BEATS = 2.0
"""A server that owns nothing stays for so many heartbeats after everybody has heard of it: what is on its way
to it is refused by it, and need not be waited for."""


class Decommission:
    """Which servers have left the map, and since when nobody asks them anything any more.

    Parameters
    ----------
    members : Membership
        Who is there; its map is read and replaced.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._gone: dict[int, int] = {}
        """Of each leaving server the map that says that it is nowhere."""
        self._unknown_s: dict[int, float] = {}

    @property
    def gone(self) -> set[int]:
        """Ranks of those that have left the map."""
        return set(self._gone)

    def look(self, now_s: float, leaving: Collection[int]) -> list[dict[str, Any]]:
        """Note who has heard what; records of those that own nothing any more and leave the map now."""
        trainers = self._members.live("trainer")
        known = min([one.map_version for one in trainers], default=0)
        empty = []
        for rank in sorted(leaving):
            if rank in self._gone and self._has_address(rank):
                del self._gone[rank]  # that was another one, before this one came
                self._unknown_s.pop(rank, None)
            if rank not in self._gone:
                empty += [rank] if self._is_empty(rank) else []
            elif known >= self._gone[rank] or not trainers:
                self._unknown_s.setdefault(rank, now_s)
        version = 0 if self._members.map is None else self._members.map.version
        return [
            {"kind": "gone", "rank": rank, "version": version + 1 + place} for place, rank in enumerate(empty)
        ]

    def may_leave(self, now_s: float, rank: int) -> bool:
        """Whether one of those that leave is needed by nobody any more."""
        if self._has_address(rank):  # it has come back since one at its place left
            return False
        since_s, timing = self._unknown_s.get(rank), self._members.config.timing
        return since_s is not None and now_s - since_s > LEAVE_BEATS * timing.heartbeat_s

    def replay(self, rank: int, version: int) -> None:
        """A server has left the map."""
        self._gone[rank] = version
        if self._members.map is not None and self._has_address(rank):
            self._members.map = self._members.map.with_address(rank, "")

    def records(self) -> list[dict[str, Any]]:
        """What `replay` needs to come here."""
        return [{"kind": "gone", "rank": rank, "version": version} for rank, version in self._gone.items()]

    def _has_address(self, rank: int) -> bool:
        current = self._members.map
        return current is not None and bool(current.addresses[rank])

    def _is_empty(self, rank: int) -> bool:
        current = self._members.map
        return self._members.wave is None and current is not None and not (current.owners == rank).any()
