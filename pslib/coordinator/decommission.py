"""Decommission of servers, as a pure state machine of the coordinator.

A drained server leaves the map as soon as it owns nothing. It may exit when every process has that map, and
requests still in flight to it have been refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pslib.coordinator.membership import Membership

LEAVE_BEATS = 2.0
"""Heartbeats that an empty server stays after every process has the new map.

It refuses the requests in flight to it, which need not be waited for.
"""


class Decommission:
    """Servers that have left the map, and since when no process sends them requests.

    Parameters
    ----------
    members : Membership
        The cluster's members; their map is read and replaced.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._gone: dict[int, int] = {}
        """Map version without the server, for each leaving server."""
        self._unknown_s: dict[int, float] = {}

    @property
    def gone(self) -> set[int]:
        """Ranks of servers that have left the map."""
        return set(self._gone)

    def look(self, now_s: float, leaving: Collection[int]) -> list[dict[str, Any]]:
        """Update which members have the map; return records of empty servers that leave the map now."""
        trainers = self._members.live("trainer")
        known = min([one.map_version for one in trainers], default=0)
        empty = []
        for rank in sorted(leaving):
            if rank in self._gone and self._has_address(rank):
                del self._gone[rank]  # that was a predecessor at this rank
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
        """Return True if a leaving server may exit."""
        if self._has_address(rank):  # a successor has come back at its rank
            return False
        since_s, timing = self._unknown_s.get(rank), self._members.config.timing
        return since_s is not None and now_s - since_s > LEAVE_BEATS * timing.heartbeat_s

    def replay(self, rank: int, version: int) -> None:
        """Apply a record of a server that has left the map."""
        self._gone[rank] = version
        if self._members.map is not None and self._has_address(rank):
            self._members.map = self._members.map.with_address(rank, "")

    def records(self) -> list[dict[str, Any]]:
        """Return the records from which `replay` restores this state."""
        return [{"kind": "gone", "rank": rank, "version": version} for rank, version in self._gone.items()]

    def _has_address(self, rank: int) -> bool:
        current = self._members.map
        return current is not None and bool(current.addresses[rank])

    def _is_empty(self, rank: int) -> bool:
        current = self._members.map
        return self._members.wave is None and current is not None and not (current.owners == rank).any()
