"""Rebalance of units between live servers, as a pure state machine of the coordinator.

The target is one number: how many servers own units (`Rebalance.scale`). The map holds the actual state. The
remaining moves follow from both (`even_owners`), so no plan is stored: units move in waves, and each wave is
planned anew. A wave is a map version with a few units of each source; the sources request their parts
(`NextHand`), hand the units over themselves and report which have arrived. When all units of a wave are done,
its map is published.

Every message carries the wave's version, so duplicates are harmless. State that must survive the coordinator
goes through `on_record` before it counts, and `replay` restores it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.coordinator.decommission import Decommission
from pslib.coordinator.events import Tell
from pslib.coordinator.membership import Membership, Wave
from pslib.errors import ConfigurationError
from pslib.table.partition_map import PartitionMap
from pslib.text import counted
from pslib.wire.fields import Message
from pslib.wire.messages import Failure, Hand, NextHand, Result, Scale

WAVE_UNITS = 256
"""Units per source and wave: a wave of small partitions takes some tenths of a second."""
WAVE_BYTES = 64 << 20
"""Bytes per source and wave: the source keeps the images of a wave until its map is published."""
VERSIONS_A_WAVE = 1 << 16
"""Versions between waves: the map of a wave takes the next multiple.

New addresses may be published under versions in between, and none of these is taken for the end of the wave.
"""
MOVES_TOLD = 1000
"""Moves under way that a status has; it must fit a message."""
SCALE_REQUESTS_KEPT = 1000
"""Number of answers kept. Duplicates arrive seconds later at most, and scale requests are rare."""

Owners = NDArray[np.uint16]


@dataclass(slots=True)
class MoveProgress:
    """Reported progress of the moves since the last scale request."""

    asked_s: float = 0.0
    began_s: float | None = None
    ended_s: float | None = None
    moved: int = 0
    bytes: int = 0
    stopped: str = ""
    """Reason why units stay although shares are not even."""


@dataclass(slots=True)
class ScaleRequests:
    """The latest scale requests by name, so that none is granted twice.

    Otherwise a late duplicate would undo a newer request. The duplicate of a request to drain a server that
    has left since would be refused, as no such server exists.
    """

    answers: dict[int, str] = field(default_factory=dict)

    def answer(self, name: int) -> str | None:
        """Return the recorded refusal, empty for a granted request; None for a new request."""
        return self.answers.get(name)

    @property
    def granted(self) -> list[int]:
        """Return the names of granted requests."""
        return [name for name, problem in self.answers.items() if not problem]

    def note(self, name: int, problem: str) -> None:
        """Record the answer to a request."""
        self.answers[name] = problem
        if len(self.answers) > SCALE_REQUESTS_KEPT:
            del self.answers[next(iter(self.answers))]


class Rebalance:
    """Rebalance: planned moves of units, directions to the sources, and published maps.

    Parameters
    ----------
    members : Membership
        The cluster's members; their map is read and replaced.
    say : Tell
        Adds an event.
    wave_units : int
        Units of one source that move at once.

    Attributes
    ----------
    wanted : int
        Target number of servers that own units.
    leaving : set of int
        Ranks of servers to be drained.
    on_record : callable
        Called with each record before it counts; a journal keeps them for `replay`.
    """

    def __init__(self, members: Membership, say: Tell, wave_units: int = WAVE_UNITS) -> None:
        self.members = members
        self._most_units = wave_units
        self.wanted = members.config.servers
        self.leaving: set[int] = set()
        self.progress = MoveProgress()
        self.on_record: Callable[[dict[str, Any]], None] = lambda _record: None
        self._say = say
        self._asked = False
        self._over: dict[int, bool] = {}
        """Finished units of the wave, and whether each has arrived."""
        self._paused = False
        self._seen: set[int] = set()
        self._joined_s, self._joined_version = 0.0, 0
        """Time when the newest server was first seen, and the map version that includes it."""
        self._decommission = Decommission(members)
        self._scale_requests = ScaleRequests()
        self._drained: dict[int, int] = {}
        """Servers that leave because of a signal, and the number of servers awaited at that time."""

    @property
    def wave(self) -> Wave | None:
        """The wave under way."""
        return self.members.wave

    # --- the target ---------------------------------------------------------------------------------------

    def scale(self, now_s: float, message: Scale) -> Message:
        """Set the number of servers that own units, and drain those in ``drain``; 0 keeps the number."""
        if (known := self._scale_requests.answer(message.name)) is not None:
            return self._answer(now_s, known)
        problem, leaving = self._leaving(message)
        if problem:
            self._scale_requests.note(message.name, problem)
            return self._answer(now_s, problem)
        staying = [rank for rank in self._here() if rank not in leaving]
        wanted = message.servers or len(staying)
        self._record({"kind": "scale", "wanted": wanted, "leaving": sorted(leaving), "name": message.name})
        if message.servers:  # overrides earlier requests to leave
            self._drained.clear()
        self.progress = MoveProgress(asked_s=now_s)
        self._say(f"scaling to {counted(wanted, 'server')}: {self._in_words(wanted, len(staying))}", "scaled")
        return self._answer(now_s, "")

    def grow(self, now_s: float, wanted: int) -> None:
        """Let this many servers own units, all of which have joined."""
        self._record({"kind": "scale", "wanted": wanted, "leaving": sorted(self.leaving)})
        self.progress = MoveProgress(asked_s=now_s)

    def drain(self, now_s: float, rank: int, name: int) -> Message:
        """Drain a server that was asked to leave: its units move to others. ``name`` as that of a `Scale`."""
        if rank not in self.leaving:
            self._drained[rank] = self.awaited
        return self.scale(now_s, Scale(0, [rank], name))

    def take_back(self) -> None:
        """Cancel the draining of servers that still own units; others are awaited again."""
        back = self.leaving & self._drained.keys() - self._decommission.gone
        if back:
            wanted = self.wanted + sum(1 + self._drained[rank] for rank in back)
            self._record({"kind": "scale", "wanted": wanted, "leaving": sorted(self.leaving - back)})

    def _answer(self, now_s: float, problem: str) -> Message:
        return Failure("configuration", problem) if problem else Result(self.status(now_s))

    def _leaving(self, message: Scale) -> tuple[str, set[int]]:
        """Validate a scale request; return the problem, and the servers that leave when it is granted."""
        members, config = self.members, self.members.config
        if members.map is None:
            return "scale: the cluster has not started yet; ask again when it trains", set()
        ranks = self._here()
        drain = {rank for rank in message.drain if isinstance(rank, int)}
        going = self.leaving & self._decommission.gone
        if strange := drain - set(ranks):
            return f"scale: there is no server {min(strange)}; there are {ranks}", set()
        servers_max = min(config.SERVERS_MAX, config.partitions // 16)
        if not 0 <= message.servers <= servers_max:
            least = f"with {config.partitions} partitions (at least 16 a server)"
            return f"scale: expected 1..{servers_max} servers {least}, got {message.servers}", set()
        staying = [rank for rank in ranks if rank not in drain | self.leaving]
        wanted = message.servers or len(staying)
        if wanted < 1:
            return "scale: no server would be left; expected at least 1", set()
        # cancel the draining of servers before new ones are started
        back = sorted(self.leaving & set(ranks) - drain - going)[: max(0, wanted - len(staying))]
        stay = sorted([*staying, *back])[:wanted]
        return "", set(ranks) - set(stay)

    def _in_words(self, wanted: int, staying: int) -> str:
        awaited = max(0, wanted - staying)
        if awaited:
            return f"waiting for {awaited} more to join"
        return f"servers {sorted(self.leaving)} leave" if self.leaving else "all of them have joined"

    @property
    def awaited(self) -> int:
        """Return the number of wanted servers that are absent."""
        current = self.members.map
        if current is None or not self._asked:
            return 0
        # including those that leave with their units, at the end of a run
        staying = [rank for rank, address in enumerate(current.addresses) if address]
        return max(0, self.wanted - sum(rank not in self.leaving for rank in staying))

    def awaited_ranks(self) -> list[int]:
        """Return the ranks of servers to start: lost ones in the map, then the lowest unused ranks."""
        servers, here = self.members.servers, self._here()
        lost = [one.rank for one in servers if one.state == "lost" and one.rank in here]
        had = {server.rank for server in servers}
        free = (rank for rank in range(len(had) + self.awaited) if rank not in had)
        return [*lost, *islice(free, self.awaited)]

    def targets(self) -> list[int]:
        """Return the ranks of the servers that should own units."""
        return [rank for rank in self._here() if rank not in self.leaving][: self.wanted]

    def _here(self) -> list[int]:
        """Return the ranks of servers that have not left; a lost one with a log counts, as it comes back."""
        current = self.members.map
        if current is None:
            return []
        places = [server.rank for server in self.members.servers if server.state != "left"]
        return [rank for rank in places if current.addresses[rank]]

    # --- waves --------------------------------------------------------------------------------------------

    def tick(self, now_s: float, busy: bool) -> None:
        """Advance the time: start a wave when there is work, all know the targets, and nothing forbids it.

        Parameters
        ----------
        now_s : float
        busy : bool
            True if an operation under way forbids moves: a cut, a save or a load.
        """
        self._paused = busy
        self._look_who_is_new(now_s)
        if self.wave is None and self._asked and not busy:
            self._begin(now_s)
        for record in self._decommission.look(now_s, self.leaving):
            self._record(record)

    def _begin(self, now_s: float) -> None:
        """Start the next wave, or end the rebalance."""
        current, targets = self.members.map, self.targets()
        if current is None or not targets or self.progress.stopped or not self._all_here(now_s):
            return
        after = even_owners(current.owners, current.partitions, targets)
        moving = np.flatnonzero(after != current.owners)
        if not moving.size:
            self._end(now_s)
            return
        sources = current.owners[moving]
        ranks = np.unique(sources).tolist()
        chosen = [np.flatnonzero(sources == rank)[: self._wave_units(rank)] for rank in ranks]
        units = moving[np.concatenate(chosen)]
        version = (current.version // VERSIONS_A_WAVE + 1) * VERSIONS_A_WAVE
        if self.progress.began_s is None:
            self.progress.began_s = now_s
        self.progress.ended_s = None
        owners = {"units": units.tolist(), "targets": after[units].tolist()}
        self._record({"kind": "wave", "version": version, **owners})

    def _look_who_is_new(self, now_s: float) -> None:
        """Record when a server has joined, and the map version with its address."""
        ranks = {server.rank for server in self.members.live("server")}
        if ranks - self._seen and self.members.map is not None:
            self._seen |= ranks
            self._joined_s, self._joined_version = now_s, self.members.map.version

    def _all_here(self, now_s: float) -> bool:
        """Return True if no server is awaited, and every member has the map with all servers."""
        timing, since_s = self.members.config.timing, max(self.progress.asked_s, self._joined_s)
        if self.awaited:
            if now_s - since_s < timing.start_s:
                return False
            self._do_without(now_s)
        if any(server.state == "lost" and self.members.units_of(server) for server in self.members.servers):
            return False  # it is restarted, or the run ends
        members = (*self.members.live("server"), *self.members.live("trainer"))
        behind = any(member.map_version < self._joined_version for member in members)
        return not behind or now_s - since_s > timing.silence_s

    def _do_without(self, now_s: float) -> None:
        """Stop waiting for servers that have not joined in time."""
        here = len(self.targets())
        self._say(
            f"{counted(self.awaited, 'server has', 'servers have')} not joined in time: "
            f"scaling to {counted(here, 'server')} instead; scale again when all are running",
            "scaled",
        )
        self._record({"kind": "scale", "wanted": here, "leaving": sorted(self.leaving)})

    def _wave_units(self, rank: int) -> int:
        """Return the number of units of a source that move at once: its images are bounded in bytes."""
        current = self.members.map
        assert current is not None
        servers = [server for server in self.members.servers if server.rank == rank]
        taken = sum(float(server.progress.get("memory_bytes", 0)) for server in servers)
        unit_bytes = taken / max(1, int((current.owners == rank).sum()))
        return int(max(1, min(self._most_units, WAVE_BYTES // max(unit_bytes, 1.0))))

    def next_hand(self, now_s: float, message: NextHand) -> Message:
        """Handle a source's report of finished units and its request for the next part of the wave."""
        if self.members.find("server", message.rank, message.incarnation) is None:
            return Failure("fenced", "this server is not a member of the cluster")
        if self.wave is not None and message.version == self.wave.version:
            self._note(message, self.wave)
            if len(self._over) == self.wave.units.size:
                self._publish(now_s)
        wave = self.wave
        if wave is None:
            return self._nothing_now("wait" if self.moving else "done")
        mine = [
            i for i in np.flatnonzero(wave.sources == message.rank) if int(wave.units[i]) not in self._over
        ]
        if not mine:
            return self._nothing_now("wait")
        assert self.members.map is not None
        addresses = list(self.members.map.addresses)
        units = wave.units[mine].astype(np.uint32)
        return Hand("hand", wave.version, addresses, units, wave.targets[mine])

    def _nothing_now(self, state: str) -> Hand:
        return Hand(state, self._published(), [], np.empty(0, np.uint32), np.empty(0, np.uint16))

    def _note(self, message: NextHand, wave: Wave) -> None:
        """Record a report of this wave; a duplicate changes nothing."""
        lost = self.members.misplaced(message.owners)
        mine = wave.sources == message.rank
        own = set(wave.units[mine].tolist())
        there = set(wave.units[mine & ~np.isin(wave.targets, lost)].tolist())
        fresh = [unit for unit in message.done.tolist() if unit in there and unit not in self._over]
        self._over.update(dict.fromkeys(fresh, True))
        kept = [unit for unit in message.kept.tolist() if unit in own and unit not in self._over]
        self._over.update(dict.fromkeys(kept, False))
        self.progress.moved += len(fresh)
        self.progress.bytes += message.bytes if fresh else 0
        if kept and not self.progress.stopped:
            why = message.reason or "the server did not take them"
            self.progress.stopped = (
                f"{counted(len(kept), 'unit stays', 'units stay')} with server {message.rank}: {why}"
            )
            self._say(f"moves end: {self.progress.stopped}", "moved")

    def _publish(self, now_s: float) -> None:
        """Publish the map of the wave: all its units are done."""
        wave = self.wave
        assert wave is not None
        kept = sorted(unit for unit, arrived in self._over.items() if not arrived)
        self._record({"kind": "over", "version": wave.version, "kept": kept})
        if not self._paused:
            self._begin(now_s)

    def _end(self, now_s: float) -> None:
        if self.progress.began_s is not None and self.progress.ended_s is None:
            self.progress.ended_s = now_s
            seconds, moved = now_s - self.progress.began_s, self.progress.moved
            size_mb = self.progress.bytes / 1e6
            self._say(
                f"moved {counted(moved, 'unit')} ({size_mb:.1f} MB) in {seconds:.1f} s; shares are even",
                "moved",
            )

    def _published(self) -> int:
        return 0 if self.members.map is None else self.members.map.version

    @property
    def moving(self) -> bool:
        """Return True if a wave is under way, or the next one may begin at any moment."""
        return self.wave is not None or (
            self.progress.began_s is not None and self.progress.ended_s is None and not self.progress.stopped
        )

    def hand_for(self, rank: int) -> bool:
        """Return True if this server should request work with `NextHand`."""
        return self.wave is not None and bool((self.wave.sources == rank).any())

    def on_their_way(self, rank: int) -> list[list[int]]:
        """Return ``[unit, map version]`` of what a server gives away in this wave, arrived or not."""
        return [] if self.wave is None else self.wave.given_by(rank, self._over)

    def under_way(self) -> list[list[int]]:
        """Return ``[partition, from, to]`` of partitions of the wave that have not arrived; at most 1000."""
        wave, found = self.wave, []
        if wave is not None:
            told = zip(wave.units.tolist(), wave.sources.tolist(), wave.targets.tolist(), strict=True)
            partitions = self.members.config.partitions
            found = [list(one) for one in told if one[0] < partitions and one[0] not in self._over]
        return found[:MOVES_TOLD]

    def lost_by(self, rank: int) -> None:
        """Handle a server that lost the units received in this wave: their sources still have images."""
        for unit in () if self.wave is None else self.wave.given_to(rank, self._over):
            del self._over[unit]

    def may_leave(self, now_s: float, rank: int) -> bool:
        """Return True if a draining server may exit."""
        return rank in self.leaving and self._decommission.may_leave(now_s, rank)

    # --- records ------------------------------------------------------------------------------------------

    def _record(self, record: dict[str, Any]) -> None:
        self.on_record(record)
        self.replay(record)

    def replay(self, record: Mapping[str, Any]) -> None:
        """Apply a record; one that is already applied changes nothing."""
        kind, current = record["kind"], self.members.map
        if kind == "wishes" or "name" in record:
            for name in record["names"] if kind == "wishes" else [record["name"]]:
                self._scale_requests.note(name, "")
        if kind == "scale":
            self.wanted, self.leaving = int(record["wanted"]), set(record["leaving"])
            self._asked = True
        elif kind == "wave" and int(record["version"]) > self._published():
            assert current is not None
            units = np.asarray(record["units"], np.int64)
            targets = np.asarray(record["targets"], np.uint16)
            self.members.wave = Wave(int(record["version"]), units, current.owners[units], targets)
            self._over = {}
        elif kind == "over" and self.wave is not None and self.wave.version == record["version"]:
            self._wave_is_over(self.wave, record["kept"])
        elif kind == "gone":
            self._decommission.replay(int(record["rank"]), int(record["version"]))

    def _wave_is_over(self, wave: Wave, kept: Sequence[int]) -> None:
        """Assign the units that have arrived to their new owners."""
        current = self.members.map
        assert current is not None
        arrived = ~np.isin(wave.units, kept)
        owners = current.owners.copy()
        owners[wave.units[arrived]] = wave.targets[arrived]
        self.members.map = PartitionMap(wave.version, current.partition_bits, owners, current.addresses)
        self.members.wave, self._over = None, {}

    def records(self) -> list[dict[str, Any]]:
        """Return the records from which `replay` restores this state, given the map."""
        records: list[dict[str, Any]] = [{"kind": "wishes", "names": list(self._scale_requests.granted)}]
        if self._asked:
            records.append({"kind": "scale", "wanted": self.wanted, "leaving": sorted(self.leaving)})
        records += self._decommission.records()
        if wave := self.wave:
            owners = {"units": wave.units.tolist(), "targets": wave.targets.tolist()}
            records.append({"kind": "wave", "version": wave.version, **owners})
        return records

    def status(self, now_s: float) -> dict[str, Any]:
        """Return the progress: ``moved`` of ``units`` units, bytes, seconds, awaited and leaving servers."""
        progress = self.progress
        until_s = now_s if progress.ended_s is None else progress.ended_s
        return {
            "wanted": self.wanted,
            "awaited": self.awaited,
            "awaited_ranks": self.awaited_ranks(),
            "leaving": sorted(self.leaving),
            "moving": self.moving,
            "moved": progress.moved,
            "units": progress.moved + self._left(),
            "bytes": progress.bytes,
            "seconds": 0.0 if progress.began_s is None else until_s - progress.began_s,
            "stopped": progress.stopped or None,
        }

    def _left(self) -> int:
        """Return the number of units that are not at their target."""
        current, targets = self.members.map, self.targets()
        if not self._asked or current is None or not targets:
            return 0
        after = even_owners(current.owners, current.partitions, targets)
        return int((after != current.owners).sum()) - sum(self._over.values())


# --- placement --------------------------------------------------------------------------------------------


def even_owners(owners: Owners, partitions: int, servers: Collection[int]) -> Owners:
    """Assign all units to ``servers`` in even shares, with as few moves as possible.

    Keys are hashed over partitions, so even numbers of partitions give even numbers of rows, and even numbers
    of dense blocks give even bytes of dense parameters.

    Parameters
    ----------
    owners : (units,) uint16
        The current owners; the first ``partitions`` units are partitions, the others dense blocks.
    partitions : int
        Number of units that are partitions.
    servers : collection of int
        Ranks of the servers to own units; at least one.

    Returns
    -------
    (units,) uint16
        The numbers of partitions of two servers differ by at most one, and so do those of dense blocks. The
        same arguments give the same result.

    Raises
    ------
    ConfigurationError
        If there is no server to own the units.
    """
    if not servers:
        raise ConfigurationError("moves: expected at least one server to own units, got none")
    ranks = np.unique(np.asarray(sorted(servers), np.int64))
    return np.concatenate([_evenly(owners[:partitions], ranks), _evenly(owners[partitions:], ranks)])


def _evenly(owners: Owners, ranks: NDArray[np.int64]) -> Owners:
    """Assign units of one kind evenly."""
    size = max(int(ranks[-1]), int(owners.max(initial=0))) + 1
    owned = np.bincount(owners, minlength=size)
    shares = np.zeros(size, np.int64)
    share, larger = divmod(owners.size, ranks.size)
    shares[ranks] = share
    most = np.lexsort((ranks, -owned[ranks]))  # the largest owners keep the extra unit: one move less
    shares[ranks[most[:larger]]] += 1
    by_owner = np.argsort(owners, kind="stable")
    place = np.arange(owners.size) - np.repeat(np.cumsum(owned) - owned, owned)
    leaving = np.sort(by_owner[place >= shares[owners[by_owner]]])
    after = owners.copy()
    after[leaving] = np.repeat(np.arange(size), np.maximum(shares - owned, 0))
    return after
