"""Who is in the cluster, who is silent, and the first map: a pure machine that the coordinator drives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pslib.config import ClusterConfig
from pslib.partition_map import PartitionMap

__all__ = ["Member", "Membership"]


@dataclass(slots=True)
class Member:
    """One process: its place, when it was last heard, and its cumulative counters."""

    role: str
    rank: int
    incarnation: int
    address: str
    where: str
    heard_s: float
    map_version: int = 0
    state: str = "live"
    """live, left (flushed and gone) or lost (silent too long)."""
    preempted: bool = False
    """Whether it left because it was asked to, with work to do."""
    progress: dict[str, Any] = field(default_factory=dict)


class Membership:
    """Servers and trainers of one cluster.

    The map is made when all servers are there; trainers start when every server has that map and all trainers
    are there, or when the start time is over and at least one is.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.servers: list[Member] = []
        self.trainers: list[Member] = []
        self.map: PartitionMap | None = None
        self._first_trainer_s: float | None = None
        self._started = False

    def register(self, now_s: float, role: str, incarnation: int, address: str, where: str) -> Member | str:
        """The member for this process (the same one when it asks again), or why it can't join."""
        members = self.servers if role == "server" else self.trainers
        for member in members:
            if member.incarnation == incarnation:
                member.heard_s = now_s
                return member
        if self.trainers_over():
            return "the cluster's trainers have all left; start a new one"
        member = Member(role, len(members), incarnation, address, where, now_s)
        members.append(member)
        if role == "server" and self.map is not None:  # it owns nothing until somebody scales the cluster
            self.map = self.map.with_server(address)
        elif role == "server" and len(self.servers) == self.config.servers:
            addresses = tuple(server.address for server in self.servers)
            self.map = PartitionMap.even(self.config.partition_bits, self.config.dense_blocks, addresses)
        if role == "trainer" and self._first_trainer_s is None:
            self._first_trainer_s = now_s
        return member

    def missing(self, now_s: float, role: str) -> str:
        """For whom a process of this role still has to wait, in words; empty when it can start."""
        if self.map is None:
            return f"{self.config.servers - len(self.servers)} of {self.config.servers} servers"
        if role == "server" or self._started:
            return ""
        behind = [server for server in self.servers if server.map_version < self.map.version]
        if behind:
            return f"server {behind[0].rank} at {behind[0].address} to take its partitions"
        absent = self.config.trainers - len(self.trainers)
        late = (
            self._first_trainer_s is not None
            and now_s - self._first_trainer_s > self.config.timing.start_s / 2
        )
        if absent > 0 and not late:
            return f"{absent} of {self.config.trainers} trainers"
        self._started = True
        return ""

    def heard(self, now_s: float, role: str, rank: int, incarnation: int, map_version: int) -> Member | None:
        """Note a sign of life; None for a process that is not (or no longer) a live member."""
        member = self.find(role, rank, incarnation)
        if member is None or member.state == "lost":
            return None
        member.heard_s = now_s
        member.map_version = max(member.map_version, map_version)
        return member

    def find(self, role: str, rank: int, incarnation: int) -> Member | None:
        """The member of this role, rank and incarnation."""
        members = self.servers if role == "server" else self.trainers
        if rank < len(members) and members[rank].incarnation == incarnation:
            return members[rank]
        return None

    def silent(self, now_s: float) -> list[Member]:
        """Live members that have been silent too long; they are lost from now on."""
        limit_s = self.config.timing.silence_s
        lost = [
            member
            for member in (*self.servers, *self.trainers)
            if member.state == "live" and now_s - member.heard_s > limit_s
        ]
        for member in lost:
            member.state = "lost"
        return lost

    def live(self, role: str) -> list[Member]:
        """Live members of a role."""
        members = self.servers if role == "server" else self.trainers
        return [member for member in members if member.state == "live"]

    def trainers_over(self) -> bool:
        """Whether trainers were here, no other is awaited, and all of them have gone."""
        complete = self._started or len(self.trainers) >= self.config.trainers
        return bool(self.trainers) and complete and not self.live("trainer")

    def servers_over(self) -> bool:
        """Whether no server is live."""
        return not self.live("server")
