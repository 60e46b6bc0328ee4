"""Recovery of servers that restart without their state, as a pure state machine.

Where servers restart from their logs (``recovery: log``), a server without a log ends the run. With
``recovery: partial`` it begins at the last checkpoint of the run, or at initial values. It has no marks, so
it is told below which batch every lease is applied: those batches are not sent again except by mistake. Units
that are moving to or from it are handed over once more. See "A server comes back without what it knew" in
docs/design/sequences.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pslib.coordinator.events import Tell
from pslib.coordinator.jobs import JobRegistry
from pslib.coordinator.leases import RankedLeases, stream_of
from pslib.coordinator.membership import Member, Membership
from pslib.coordinator.rebalance import Rebalance
from pslib.storage import shown
from pslib.wire.messages import Register


class Recovery:
    """Recovery decisions: the state with which a server without its predecessor's state begins.

    Parameters
    ----------
    members : Membership
    registry : JobRegistry
        Has the last checkpoint and the positions of leases.
    moves : Rebalance
        Has the units that are moving.
    tell : Tell
        Adds an event.
    fail : callable
        Ends the run, with the reason.
    """

    def __init__(
        self,
        members: Membership,
        registry: JobRegistry,
        moves: Rebalance,
        tell: Tell,
        fail: Callable[[str], None],
    ) -> None:
        self._members, self._registry, self._moves = members, registry, moves
        self._tell, self._fail = tell, fail

    def refusal(self, message: Register) -> str:
        """Return why a server can't restart without its state at its address; empty when it can.

        Clients identify a server by its address: one that finds the same address sends it no tables, and
        assumes that units handed over to the predecessor are there.
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
        """Handle a server that replaces ``before``; ``empty``: without any of its state.

        Returns
        -------
        bool
            True if it may begin. One that may not must write no log: the next one would resume from it.
        """
        config = self._members.config
        if not empty or not self._members.is_owner(server):  # moving units may be there
            return True
        if config.recovery == "partial":
            self._begin_bare(before, server)
        elif config.coordinator_comes_back and self._had_begun(server.rank):
            self._fail(
                f"server {server.rank} at {server.address} ({server.where}) has no log of what its "
                f"predecessor knew; restore LOG/server-{server.rank} in place of the new folder, or start "
                f"again from {self._checkpoint or 'the beginning: there is no checkpoint'}"
            )
            return False
        return True

    def _had_begun(self, rank: int) -> bool:
        """Return True if a server of this rank reported its first units: with a log, they are in it."""
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
            f"{who}: its {units} units begin at {self.beginning}; what was pushed to them since is lost",
            "back",
            "server",
            server.rank,
        )

    @property
    def beginning(self) -> str:
        """Describe the state that such a server begins with."""
        return self._checkpoint or "their first values: there is no checkpoint"

    @property
    def _checkpoint(self) -> str:
        """Describe the last checkpoint; empty without one."""
        loads = self._registry.basis
        return f"checkpoint {shown(loads[-1]['path'])}" if loads else ""

    @property
    def _is_in_step(self) -> bool:
        """Return True if all trainers step together: some may already know of a step that is lost."""
        return any(isinstance(job.book, RankedLeases) and not job.over for job in self._registry.jobs)

    def begins(self, server: Member) -> dict[str, Any]:
        """Return the instructions for a server that registers; empty if it has its predecessor's state.

        ``loads`` are checkpoints, as `pslib.wire.messages.Load` names them, and ``moment`` is their moment;
        ``streams`` has ``[stream, epoch, below]`` of leases under way, all others below ``done_below`` are
        over; ``released`` has ``[unit, map version]`` of units that are moving to other servers.
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
