"""Servers that come back without what they knew, as the coordinator sees them: a pure machine.

Where servers come back from their logs (``recovery: log``), one without a log ends the run. With
``recovery: partial`` it begins at the last checkpoint of the run, or at first values. It has no marks,
so it is told below which batch every lease is applied: nobody sends those again but by mistake. Units that
are on their way to or from it are handed over once more. See "A server comes back without what it knew" in
docs/design/sequences.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pslib.coordinator.jobs import JobRegistry
from pslib.coordinator.leases import RankedLeases, stream_of
from pslib.coordinator.membership import Member, Membership
from pslib.coordinator.rebalance import Rebalance
from pslib.storage import shown
from pslib.wire.messages import Register

__all__ = ["Recovery"]


class Recovery:
    """Says what such a server begins with.

    Parameters
    ----------
    members : Membership
    registry : JobRegistry
        Knows the last checkpoint, and how far leases are.
    moves : Rebalance
        Knows which units are on their way.
    tell : callable
        Takes one line for people.
    fail : callable
        Ends the run, with the reason.
    """

    def __init__(
        self,
        members: Membership,
        registry: JobRegistry,
        moves: Rebalance,
        tell: Callable[[str], None],
        fail: Callable[[str], None],
    ) -> None:
        self._members, self._registry, self._moves = members, registry, moves
        self._tell, self._fail = tell, fail

    def refusal(self, message: Register) -> str:
        """Why a server can't come back without what it knew where it listens; empty when it can.

        Whoever was told of its predecessor goes by the address: who finds the same one tells it nothing of
        tables, and takes what has been handed over to it for what is there.
        """
        members = self._members
        before = members.at("server", message.rank) if message.role == "server" and message.empty else None
        if before is None or before.incarnation == message.incarnation or not members.is_owner(before):
            return ""
        if members.config.recovery != "partial" or before.address != message.address:
            return ""
        return (
            f"server {message.rank} comes back without what it knew: expected another address than its "
            f"predecessor's, got {message.address}; with --listen and port 0 it takes any free one"
        )

    def joined(self, before: Member, server: Member, empty: bool) -> bool:
        """A server has taken the place of ``before``; ``empty``: with nothing of what that one knew.

        Returns
        -------
        bool
            Whether it may begin. One that may not must write no log either: the next one would go on from it.
        """
        config = self._members.config
        if not empty or not self._members.is_owner(server):  # units on their way may be there
            return True
        if config.recovery == "partial":
            self._begin_bare(before, server)
        elif config.coordinator_comes_back and self._had_begun(server.rank):
            self._fail(
                f"server {server.rank} at {server.address} ({server.where}) has no log of what its "
                f"predecessor knew; restore LOG/server-{server.rank} in place of the new folder, or start "
                f"again from {self._restart}"
            )
            return False
        return True

    def _had_begun(self, rank: int) -> bool:
        """Whether one at this place has said that it had its first units: with a log, they stand in it."""
        return any(one.map_version > 0 for one in self._members.ever("server") if one.rank == rank)

    def _begin_bare(self, before: Member, server: Member) -> None:
        units = self._members.units_of(server)
        server.bare = before.followed_bare = True
        who = f"server {server.rank} comes back without what it knew"
        if units and self._is_in_step:
            self._fail(
                f"{who}, and with consistency sync no step can go on without it; start again from "
                f"{self.beginning}"
            )
            return
        self._moves.lost_by(server.rank)
        self._tell(
            f"{who}: its {units} units begin at {self.beginning}; what was pushed to them since is lost"
        )

    @property
    def beginning(self) -> str:
        """What such a server begins with, in words."""
        return self._checkpoint or "their first values: there is no checkpoint"

    @property
    def _restart(self) -> str:
        """Where a run that can't go on may begin, in words."""
        return self._checkpoint or "the beginning: there is no checkpoint"

    @property
    def _checkpoint(self) -> str:
        """The last one, in words; empty where there is none."""
        loads = self._registry.basis
        return f"checkpoint {shown(loads[-1]['path'])}" if loads else ""

    @property
    def _is_in_step(self) -> bool:
        """Whether steps are made by all trainers together: some may have been told of one that is lost."""
        return any(isinstance(job.book, RankedLeases) and not job.over for job in self._registry.jobs)

    def begins(self, server: Member) -> dict[str, Any]:
        """What a server is told with its place; nothing for one that knows what its predecessor knew.

        ``loads`` are checkpoints, as `pslib.wire.messages.Load` names them, and ``moment`` is when that
        was; ``streams`` has ``[stream, epoch, below]`` of leases under way, all others ``done_below`` are
        over; ``released`` has ``[unit, map version]`` of units that are on their way to others.
        """
        if not server.bare:
            return {}
        return {
            "loads": self._registry.basis,
            "moment": self._registry.moment,
            "done_below": self._registry.streams_done_below(),
            "streams": [
                [stream_of(number, index), epoch, below]
                for number, job in enumerate(self._registry.jobs)
                for index, epoch, below in job.book.floors()
            ],
            "released": self._moves.on_their_way(server.rank),
        }
