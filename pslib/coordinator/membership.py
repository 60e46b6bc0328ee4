"""Membership: processes of the cluster, their liveness, and the partition map. A pure state machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.config import ANY_RANK, NEXT_GENERATION, ClusterConfig
from pslib.table.partition_map import PartitionMap
from pslib.text import counted


@dataclass(slots=True)
class Member:
    """Member process: its role and rank, the time it was last heard, and its cumulative counters."""

    role: str
    rank: int
    incarnation: int
    address: str
    where: str
    heard_s: float
    generation: int = 0
    map_version: int = 0
    state: str = "live"
    """State: live, left (flushed and gone) or lost (silent too long, or replaced)."""
    preempted: bool = False
    """True if it left on request, with work left to do."""
    progress: dict[str, Any] = field(default_factory=dict)
    lost_s: float = 0.0
    bare: bool = False
    """True if it registered without its predecessor's state, and begins at a checkpoint."""
    followed_bare: bool = False
    """True if its successor did so."""
    fenced: bool = False
    """True if it has been heard after it was lost."""
    call: int = -1
    """For a trainer: the last call that its script has made; -1 before the first."""


@dataclass(frozen=True, slots=True, eq=False)
class Wave:
    """Units that move under one map version: ``units[i]`` to server ``targets[i]``, both (n,)."""

    version: int
    units: NDArray[np.int64]
    sources: NDArray[np.uint16]
    targets: NDArray[np.uint16]

    def given_by(self, rank: int, over: Mapping[int, bool]) -> list[list[int]]:
        """Return ``[unit, version]`` of what server ``rank`` gives away, except what it keeps after all."""
        mine = self.units[self.sources == rank].tolist()
        return [[unit, self.version] for unit in mine if over.get(unit, True)]

    def given_to(self, rank: int, over: Mapping[int, bool]) -> list[int]:
        """Return the units that have arrived at server ``rank``."""
        return [unit for unit in self.units[self.targets == rank].tolist() if over.get(unit, False)]


class Membership:
    """Servers and trainers of one cluster.

    The map is made when all servers have joined. Trainers start when every server has that map and all
    trainers have joined, or when the start time is over and at least one has. A process of a higher
    generation may take a role and rank; the previous holder is then lost.

    Parameters
    ----------
    config : ClusterConfig
        Expected numbers of servers and trainers.
    ranks_named : bool
        True if the awaited trainers name their ranks, as those of a launcher do: one that names none then
        gets a rank beyond theirs, however early it registers, and the start does not count it.

    Attributes
    ----------
    map : PartitionMap or None
        The map, once all servers have joined.
    former : list of Member
        Replaced members; their counters still count.
    changes : int
        Rises whenever a member joins, or trainers may start: changes that a journal must hold.
    """

    def __init__(self, config: ClusterConfig, ranks_named: bool = False) -> None:
        self.config, self.ranks_named = config, ranks_named
        self.map: PartitionMap | None = None
        self.former: list[Member] = []
        self.wave: Wave | None = None
        """Units that are moving between servers: set by `pslib.coordinator.rebalance`."""
        self.changes = 0
        self._places: dict[str, dict[int, Member]] = {"server": {}, "trainer": {}}
        self._first_trainer_s: float | None = None
        self._started = False
        self._resumed_s: float | None = None

    @property
    def servers(self) -> list[Member]:
        """Current members with the server role, by rank."""
        return self._of("server")

    @property
    def trainers(self) -> list[Member]:
        """Current members with the trainer role, by rank."""
        return self._of("trainer")

    @property
    def has_started(self) -> bool:
        """True once trainers may train."""
        return self._started

    def _of(self, role: str) -> list[Member]:
        places = self._places[role]
        return [places[rank] for rank in sorted(places)]

    def ever(self, role: str) -> list[Member]:
        """Return all members of a role, replaced ones included."""
        return [*(member for member in self.former if member.role == role), *self._of(role)]

    # --- joining ------------------------------------------------------------------------------------------

    def register(
        self,
        now_s: float,
        role: str,
        incarnation: int,
        address: str,
        where: str,
        rank: int = ANY_RANK,
        generation: int = 0,
    ) -> Member | str:
        """Register a process; return its member (the same one on a retry), or the refusal."""
        places = self._places[role]
        for member in places.values():
            if member.incarnation == incarnation:
                member.heard_s = now_s
                return member
        if generation == NEXT_GENERATION:
            generation = places[rank].generation + 1 if rank in places else 0
        if refused := self._refusal(now_s, role, address, rank, generation):
            return refused
        if rank == ANY_RANK:
            first = self.config.trainers if role == "trainer" and self.ranks_named else 0
            rank = next(free for free in count(first) if free not in places)
        return self._enter(now_s, Member(role, rank, incarnation, address, where, now_s, generation))

    def holder(self, role: str, rank: int, incarnation: int, generation: int) -> Member | None:
        """Return the live member for whose end a process of the next generation waits; None if it need not.

        Two pods may have one name for a moment. Nobody knows which of them is newer, and if the last to
        register had the rank, each would fence the other, be started again and come back.
        """
        member = self._places[role].get(rank)
        waits = generation == NEXT_GENERATION and member is not None and member.incarnation != incarnation
        return member if waits and member is not None and member.state == "live" else None

    def _enter(self, now_s: float, member: Member) -> Member:
        """Add a new member; a previous holder of its rank is lost."""
        places, role = self._places[member.role], member.role
        before = places.get(member.rank)
        places[member.rank] = member
        self.changes += 1
        if before:
            self.former.append(before)
            if before.state == "live":
                self.lose(now_s, before)
        if role == "server":
            self.map = self._map_with(member)
        elif self._first_trainer_s is None:
            self._first_trainer_s = now_s
        return member

    def _refusal(self, now_s: float, role: str, address: str, rank: int, generation: int) -> str:
        """Return why a new process can't have this rank; empty when it can."""
        before = self._places[role].get(rank)
        if before and generation <= before.generation:
            return (
                f"{role} {rank} is generation {before.generation} ({before.where}); "
                f"generation {generation} at {address or 'another process'} is not newer"
            )
        if role == "server" and not before:
            most = self.config.servers if self.map is None else self.config.SERVERS_MAX
            if most <= rank < ANY_RANK:
                return f"expected a server's rank below {most}, got {rank} from {address}"
        if not before and self.trainers_over() and not self.awaited(now_s, "trainer"):
            return "the cluster's trainers have all left; start a new one"
        return ""

    def _map_with(self, server: Member) -> PartitionMap | None:
        """Return the map with a server that has joined: the first map, or one with its address."""
        if self.map is None:
            addresses = tuple(one.address for one in self.servers)
            if len(addresses) < self.config.servers:
                return None
            return PartitionMap.even(self.config.partition_bits, self.config.dense_blocks, addresses)
        return self.map.with_address(server.rank, server.address)

    def missing(self, now_s: float, role: str) -> str:
        """Describe the members that a process of this role waits for; empty when it can start."""
        lacking = self.lacking(now_s, role)
        if role == "trainer" and not lacking and not self._started:
            self._started = True
            self.changes += 1
        return lacking

    def lacking(self, now_s: float, role: str = "trainer") -> str:
        """Return the description of `missing`, without side effects."""
        servers = self.servers
        if self.map is None:
            return f"{self.config.servers - len(servers)} of {counted(self.config.servers, 'server')}"
        if role == "server" or self._started:
            return ""
        behind = [server for server in servers if server.map_version < 1]
        if behind:
            return f"server {behind[0].rank} at {behind[0].address} to take its partitions"
        absent = self._trainers_absent()
        late = (
            self._first_trainer_s is not None
            and now_s - self._first_trainer_s > self.config.timing.start_s / 2
        )
        return f"{absent} of {counted(self.config.trainers, 'trainer')}" if absent > 0 and not late else ""

    def _trainers_absent(self) -> int:
        """Return the number of awaited trainers that have never registered."""
        awaited = self.config.trainers
        return awaited - sum(not self.is_guest(rank) for rank in self._places["trainer"])

    def is_guest(self, rank: int) -> bool:
        """Return True if a trainer is a guest: it joined on its own, and might never make a call.

        Without named ranks, guests can't be told apart.
        """
        return self.ranks_named and rank >= self.config.trainers

    # --- signs of life ------------------------------------------------------------------------------------

    def heard(self, now_s: float, role: str, rank: int, incarnation: int, map_version: int) -> Member | None:
        """Record a sign of life; None for a process that is not (or no longer) a live member."""
        member = self.find(role, rank, incarnation)
        if member is None or member.state == "lost":
            return None
        member.heard_s = now_s
        member.map_version = max(member.map_version, map_version)
        return member

    def at(self, role: str, rank: int) -> Member | None:
        """Return the current member of this role and rank."""
        return self._places[role].get(rank)

    def find(self, role: str, rank: int, incarnation: int) -> Member | None:
        """Return the member of this role, rank and incarnation."""
        member = self._places["server" if role == "server" else "trainer"].get(rank)
        return member if member is not None and member.incarnation == incarnation else None

    def silent(self, now_s: float) -> list[Member]:
        """Mark live members that have been silent too long as lost; return them."""
        limit_s = self.config.timing.silence_s
        lost = [
            member
            for member in (*self.servers, *self.trainers)
            if member.state == "live" and now_s - member.heard_s > limit_s
        ]
        for member in lost:
            self.lose(now_s, member)
        return lost

    @staticmethod
    def lose(now_s: float, member: Member) -> None:
        """Mark a member as lost."""
        member.state, member.lost_s = "lost", now_s

    def begin_again(self, now_s: float) -> None:
        """Restart the timeouts after a coordinator restart: no member could reach it meanwhile."""
        for member in (*self.servers, *self.trainers):
            member.heard_s = member.lost_s = now_s

    def resume(self, now_s: float) -> None:
        """Mark all members as ended: their successors have as much time as after a loss."""
        self._resumed_s = now_s
        for member in (*self.servers, *self.trainers):
            self.lose(now_s, member)

    def awaited(self, now_s: float, role: str) -> list[Member]:
        """Return lost members whose successors still have time."""
        resuming = self._resumed_s is not None and now_s - self._resumed_s <= self.config.timing.restart_s
        if not (self.may_come_back(role) or resuming):
            return []
        limit_s = self.config.timing.restart_s
        return [one for one in self._of(role) if one.state == "lost" and now_s - one.lost_s <= limit_s]

    def may_come_back(self, role: str) -> bool:
        """Return True if a member of this role may be restarted, so that waiting makes sense."""
        if role == "server":
            return self.config.servers_come_back
        return self.config.restarts > 0

    def units_of(self, server: Member) -> int:
        """Return the number of units that a server owns."""
        return 0 if self.map is None else int(self.map.units_of(server.rank).size)

    def is_owner(self, server: Member) -> bool:
        """Return True if a server owns units, or may own moved ones by now."""
        return self.units_of(server) > 0 or self.is_target(server)

    def is_target(self, server: Member) -> bool:
        """Return True if units are moving to a server."""
        return self.wave is not None and bool((self.wave.targets == server.rank).any())

    def misplaced(self, owners: Iterable[Sequence[Any]]) -> list[int]:
        """Return those of ``[rank, address]`` that came back at another address, without their state."""
        places = self._places["server"]
        return [
            rank
            for rank, address in owners
            if rank in places and places[rank].bare and places[rank].address != address
        ]

    def live(self, role: str) -> list[Member]:
        """Return the live members of a role."""
        return [member for member in self._of(role) if member.state == "live"]

    def trainers_over(self) -> bool:
        """Return True if trainers have joined, none is awaited for the start, and all are gone."""
        trainers = self._places["trainer"]
        complete = self._started or self._trainers_absent() <= 0
        return bool(trainers) and complete and not self.live("trainer")

    def servers_over(self) -> bool:
        """Return True if no server is live."""
        return not self.live("server")

    # --- as plain values ----------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """Return the whole state as plain values, for `restore`."""
        current = self.map
        return {
            "members": [asdict(one) for one in (*self.servers, *self.trainers)],
            "former": [asdict(one) for one in self.former],
            "map": current and [current.version, current.owners.tolist(), list(current.addresses)],
            "first_trainer_s": self._first_trainer_s,
            "started": self._started,
            "resumed_s": self._resumed_s,
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Restore the state from another's `plain`, before any member has joined."""
        for about in plain["members"]:
            self._places[about["role"]][about["rank"]] = Member(**about)
        self.former = [Member(**about) for about in plain["former"]]
        if plain["map"]:
            version, owners, addresses = plain["map"]
            bits = self.config.partition_bits
            self.map = PartitionMap(version, bits, np.array(owners, np.uint16), tuple(addresses))
        self._first_trainer_s, self._started = plain["first_trainer_s"], plain["started"]
        self._resumed_s = plain["resumed_s"]
