"""Invariants of a simulated cluster, checked after each event that could have broken them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from cython_ext.common.hashing import partition_of
from pslib.shard.shard import Shard
from pslib.table.partition_map import units_of_mask
from pslib.wire.fields import Message, plain_of
from pslib.wire.messages import (
    Adopt,
    Beat,
    CutStep,
    CutTable,
    Done,
    EndLease,
    Erase,
    Failure,
    Heartbeat,
    Keep,
    Lease,
    NextLease,
    Push,
    Register,
    Registered,
    Release,
)
from tests.simulation.cluster.history import ABSENT, DENSE, SimulationError, require_between, rows_of
from tests.simulation.cluster.workload import DENSE_WEIGHTS, ITEM_WEIGHTS, SHARED_KEYS, Op, Script

if TYPE_CHECKING:
    from tests.simulation.cluster.members import Member
    from tests.simulation.cluster.server import Server
    from tests.simulation.cluster.world import World

__all__ = ["Checks"]


class Checks:
    """Called by the processes of a world; raises `SimulationError` in the event that broke something."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._holder: dict[tuple[int, int], tuple[int, int]] = {}
        """The only holder of each lease under each epoch."""
        self.epoch: dict[int, int] = defaultdict(int)
        self._time_s: dict[int, float] = {}
        self._maps: dict[int, tuple[bytes, tuple[str, ...]]] = {}
        self._fence: dict[tuple[str, int, int], int] = {}
        """The highest epoch under which a stream has applied anything, by shard and stream."""
        self.cuts: set[int] = set()
        self.failed: list[str] = []
        self.forgotten = 0
        """Keys of which no byte was left in a log that was trimmed."""
        self.torn = 0
        """Servers that were back from logs whose ends were gone."""
        self.missed: list[tuple[float, Op]] = []
        """Calls that were acknowledged and are gone with the end of a log, and since when."""
        self.returned = 0
        """Servers that have come back without what they knew."""
        self._lost: set[int] = set()
        """Incarnations that have ever counted as lost when a member was answered."""
        self._terms: dict[str, int] = {}
        self._generations: dict[tuple[str, int], int] = {}

    # --- leases -------------------------------------------------------------------------------------------

    def coordinator_answered(self, question: Message, answer: Message) -> None:
        """One holder a lease and epoch; nothing is skipped, and what is over is over."""
        if isinstance(question, NextLease) and isinstance(answer, Lease) and answer.state == "held":
            self._granted(question, answer)
        elif isinstance(question, EndLease) and isinstance(answer, Done):
            self._must_be_done(question.stream, "has ended")
        elif isinstance(question, CutStep):
            self._check_step(question, answer)
        elif isinstance(question, Register) and isinstance(answer, Registered):
            self._check_place(question, answer)
            self._check_beginning(answer)
        elif isinstance(question, Heartbeat) and isinstance(answer, Beat):
            self._check_beat(question, answer)
        if isinstance(answer, Beat | Registered) and answer.owners.size:
            self._published(answer)

    def _check_step(self, question: CutStep, answer: Message) -> None:
        """Follow a cut to the instant that servers remember, and to the checkpoint that it becomes."""
        if question.state == "begun" and isinstance(answer, CutTable):
            self._check_cut(question.cut, plain_of(answer.table))
        elif question.state == "saved" and isinstance(answer, Done):
            checkpoints = self.world.checkpoints
            if checkpoints.note_saved(checkpoints.path_of(question.cut)):
                self.world.mishaps.saved()

    def _check_beat(self, question: Heartbeat, answer: Beat) -> None:
        """Check that lost members stay lost, and that streams counted as done are done."""
        self._check_lost(question, answer)
        for stream in self.world.scripts:
            if stream < answer.streams_done_below:
                self._must_be_done(stream, f"counts as done (all below {answer.streams_done_below})")

    def _check_place(self, question: Register, answer: Registered) -> None:
        """A place belongs to the highest generation that has ever had it."""
        place = question.role, answer.rank
        if question.generation < self._generations.get(place, 0):
            raise SimulationError(
                f"{question.role} {answer.rank}: generation {question.generation} has its place after "
                f"generation {self._generations[place]}"
            )
        self._generations[place] = question.generation

    def _check_beginning(self, answer: Registered) -> None:
        """A server that has lost what it knew begins at the last checkpoint, and at no other."""
        if not answer.begins:
            return
        paths = [one["path"] for one in answer.begins["loads"]]
        if paths != [path for path in [self.world.checkpoints.saved] if path]:
            raise SimulationError(
                f"server {answer.rank} is to begin at {paths}, after {self.world.checkpoints.saved!r}"
            )

    def _check_lost(self, question: Heartbeat, answer: Beat) -> None:
        """A member that has counted as lost is never told to go on: a successor may have its place."""
        if self.world.coordinator.predecessor_lives:
            return  # it may answer, and knows nothing of what has happened since
        members = self.world.coordinator.session.members
        places = (*members.servers, *members.trainers)
        self._lost |= {member.incarnation for member in places if member.state == "lost"}
        if question.incarnation in self._lost and answer.order != "fail":
            raise SimulationError(
                f"{question.role} {question.rank} has counted as lost, and is told to {answer.order}"
            )

    def obeyed(self, name: str, term: int) -> None:
        """A process has obeyed a coordinator of this term: never one that came before one it has heard."""
        if term < self._terms.get(name, 0):
            raise SimulationError(f"{name} obeys term {term} after term {self._terms[name]}")
        self._terms[name] = term

    def _check_cut(self, number: int, table: dict[str, Any]) -> None:
        """At the instant of a cut each lease is applied up to its position, and not beyond."""
        if number in self.cuts:  # the answer was lost and is given again: others go on by now
            return
        self.cuts.add(number)
        self.world.checkpoints.take(number, table)
        for stream, script in self.world.scripts.items():
            self._check_position(script, self.batches_at(table, stream))

    def batches_at(self, table: dict[str, Any], stream: int) -> int:
        """Return the number of batches of a lease that are applied at a cut."""
        leases, job, index = table["leases"], stream >> 32, stream & 0xFFFFFFFF
        if job > table["job"]:
            return 0
        if job < table["job"] or any(first <= index < stop for first, stop in leases["done"]):
            return len(self.world.scripts[stream].ops)
        return next((batch for begun, batch, _given_s in leases["begun"] if begun == index), 0)

    def _check_position(self, script: Script, batches: int) -> None:
        expected: dict[int, tuple[float, ...]] = {key: ABSENT for op in script.ops for key in op.item_keys}
        for op in script.ops[:batches]:
            expected |= dict.fromkeys(op.item_keys, ABSENT if op.erases else ITEM_WEIGHTS)
        keys = np.array(list(expected), np.uint64)
        for shard in self.world.live_shards():
            for key, row in self._rows(shard, "item", shard.own_keys(keys), keys):
                allowed = {expected[key]}
                if self.world.history.is_forgiven(key):
                    allowed = self.world.history.possible(key)
                if row not in allowed:
                    raise SimulationError(
                        f"a cut says that {batches} of lease {script.stream} are applied, and key {key:#x} "
                        f"has {row}, expected {expected[key]}"
                    )

    def _published(self, answer: Beat | Registered) -> None:
        """A version of the map says the same to all members, for ever."""
        content = answer.owners.tobytes(), tuple(answer.addresses)
        if self._maps.setdefault(answer.map_version, content) != content:
            raise SimulationError(f"two maps have version {answer.map_version}")

    def _granted(self, question: NextLease, lease: Lease) -> None:
        holder = question.rank, question.incarnation
        known = self._holder.setdefault((lease.stream, lease.epoch), holder)
        if known != holder:
            raise SimulationError(
                f"lease {lease.stream} epoch {lease.epoch} was given to trainer {known[0]} and to {holder[0]}"
            )
        if lease.epoch < self.epoch[lease.stream]:
            raise SimulationError(
                f"lease {lease.stream}: epoch {lease.epoch} after {self.epoch[lease.stream]}"
            )
        self.epoch[lease.stream] = lease.epoch
        if self._time_s.setdefault(lease.stream, lease.time_s) != lease.time_s:
            raise SimulationError(
                f"lease {lease.stream} has two times: {self._time_s[lease.stream]}, {lease.time_s}"
            )
        for op in self.world.scripts[lease.stream].ops[: lease.first_batch]:
            if not self.world.history.is_acknowledged(op):
                raise SimulationError(
                    f"lease {lease.stream} goes on at {lease.first_batch}: {op.number} is not acknowledged"
                )

    def _must_be_done(self, stream: int, what: str) -> None:
        if not self.world.history.is_done(stream):
            raise SimulationError(f"lease {stream} {what}, and not all of it is acknowledged")

    def may_fail(self, member: Member, reason: str) -> None:
        """A process may end in an error only when the cluster counts on it no more."""
        self.failed.append(reason)
        session = self.world.coordinator.session
        handle = member.member
        lost = self.world.coordinator.counts_as_lost(member.role, handle.rank, handle.incarnation)
        if not (lost or session.error or handle.forsaken or self.world.lives.abandoned):
            raise SimulationError(f"{member} fails though it is a live member: {reason}")

    # --- rows ---------------------------------------------------------------------------------------------

    def shard_did(self, server: Server, shard: Shard, message: Message, result: Any) -> None:
        """After one job of a shard: the rows that it has touched, and whose they are."""
        if isinstance(result, Failure):
            return
        if isinstance(message, Push | Erase):
            self._check_fence(server, shard, message)
            for name, keys in message.keys.items():
                self._check_keys(shard, name, shard.own_keys(keys), keys)
        elif isinstance(message, Release | Keep):
            self.check_owners()
        elif isinstance(message, Adopt):
            self.check_owners()
            if message.unit in server.regained and shard.owned >> message.unit & 1:
                server.regained.discard(message.unit)
                self._forgive_unit(shard, message.unit)
            self._check_unit(shard, message.unit)

    def _check_fence(self, server: Server, shard: Shard, message: Push | Erase) -> None:
        """A trainer that has lost a lease changes nothing any more where its successor has been."""
        if message.stream < server.done_below:
            return
        place = server.address, shard.index, message.stream
        if message.epoch < self._fence.get(place, 0):
            raise SimulationError(
                f"{server} took push {message.number} of lease {message.stream} under epoch {message.epoch} "
                f"after one under epoch {self._fence[place]}"
            )
        self._fence[place] = message.epoch

    def acknowledged(self, op: Op) -> None:
        """A trainer has been told that a call is complete: it is, everywhere."""
        self.world.history.acknowledged(op)
        for shard in self.world.live_shards():
            for name, (keys, _rows) in op.rows.items():
                self._check_keys(shard, name, shard.own_keys(keys), keys)

    def _check_keys(self, shard: Shard, table: str, places: Any, keys: Any) -> None:
        if table not in ("item", "user"):  # of some tests, which look themselves
            return
        for key, row in self._rows(shard, table, places, keys):
            self._check_row(table, key, row)

    @staticmethod
    def _rows(shard: Shard, table: str, places: Any, keys: Any) -> list[tuple[int, tuple[float, ...]]]:
        if not places.size:
            return []
        store = shard.stores[table]
        rows = np.empty((places.size, store.dim), np.float32)
        store.pull(keys[places], rows, shard.tables[table].now(0, 0.0))
        return list(zip(keys[places].tolist(), map(tuple, rows.tolist()), strict=True))

    def _check_row(self, table: str, key: int, row: tuple[float, ...]) -> None:
        history = self.world.history
        if table == "user":
            require_between(history.acked[key], row[0], history.began[key], f"shared key {key:#x}")
        elif row not in history.possible(key):
            raise SimulationError(f"key {key:#x} has {row}, expected one of {history.possible(key)}")

    def _check_unit(self, shard: Shard, unit: int) -> None:
        """All rows of a unit that has come to a shard."""
        if not shard.is_responsible(unit) or not shard.owned >> unit & 1:
            return
        if unit >= shard.partitions:
            self._check_block(shard, unit - shard.partitions)
            return
        shared, items = self._known_keys(unit)
        for table, keys in (("item", items), ("user", shared)):
            self._check_keys(shard, table, np.arange(len(keys)), np.array(keys, np.uint64))

    def _check_block(self, shard: Shard, block: int) -> None:
        assert shard.dense is not None
        weights = shard.dense.weights.get(block)
        if weights is None:
            raise SimulationError(f"dense block {block} is owned and has no values")
        history = self.world.history
        for count in (weights / DENSE_WEIGHTS[slice(*shard.dense.bounds(block))]).tolist():
            require_between(history.acked[DENSE], count, history.began[DENSE], f"dense block {block}")

    def came_back(self, server: Server) -> None:
        """A server has lost what it knew, and goes on from a checkpoint: what came after that is not sure."""
        self.returned += 1
        for shard in server.shards:
            for unit in range(self.world.map.owners.size):
                if shard.owned >> unit & 1:
                    self._forgive_unit(shard, unit)
                elif shard.is_responsible(unit) and unit in shard.moves.released:
                    self._forgive_unit(None, unit)
            self.check_shard(shard)

    def lost_its_end(self, server: Server) -> None:
        """A server is back from a log whose end is gone: note what was acknowledged and is not there."""
        world = self.world
        self.torn += 1
        for op in filter(world.history.is_acknowledged, world.history.ops):
            known = [
                shard.marks.knows(op.stream, op.number, unit) for shard, unit in self._places(server, op)
            ]
            if known and not any(known):  # clients ask of one unit of each
                self.missed.append((world.network.now_s, op))
        for shard in server.shards:
            for unit in units_of_mask(shard.owned).tolist():
                self._forgive_unit(shard, unit)

    def _places(self, server: Server, op: Op) -> list[tuple[Shard, int]]:
        """Return the shards and units of a call's keys on a server."""
        keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _rows in op.rows.values())])
        units = partition_of(keys, self.world.config.partition_bits).tolist()
        return [(shard, unit) for shard in server.shards for unit in units if shard.owned >> unit & 1]

    def _forgive_unit(self, shard: Shard | None, unit: int) -> None:
        """Trust only what the shard has of this unit now; None: nothing, as the unit is on its way."""
        history, partitions = self.world.history, self.world.config.partitions
        if unit >= partitions:
            count = 0.0
            if shard is not None and shard.dense is not None:
                scale = DENSE_WEIGHTS[slice(*shard.dense.bounds(unit - partitions))]
                count = min((shard.dense.weights[unit - partitions] / scale).tolist(), default=0.0)
            history.forgive_count(DENSE, min(count, history.acked[DENSE]))
            return
        shared, items = self._known_keys(unit)
        for key in shared:
            row = self._row_of(shard, "user", key)
            history.forgive_count(key, row[0] if row else 0.0)
        for key in items:
            history.forgive(key, self._row_of(shard, "item", key))

    def _row_of(self, shard: Shard | None, table: str, key: int) -> tuple[float, ...] | None:
        if shard is None:
            return None
        keys = np.array([key], np.uint64)
        return self._rows(shard, table, np.arange(1), keys)[0][1]

    def _known_keys(self, unit: int) -> tuple[list[int], list[int]]:
        """Shared keys of a partition, and those that belong to one stream."""
        known = np.array([*self.world.history.ops_of, *SHARED_KEYS], np.uint64)
        here = known[partition_of(known, self.world.config.partition_bits) == unit]
        shared = np.isin(here, np.array(SHARED_KEYS, np.uint64))
        return here[shared].tolist(), here[~shared].tolist()

    def check_shard(self, shard: Shard) -> None:
        """Everything that a shard owns."""
        for unit in range(self.world.map.owners.size):
            self._check_unit(shard, unit)

    def check_owners(self) -> None:
        """Each unit has one owner, or none while it is carried."""
        seen = 0
        for shard in self.world.live_shards():
            if seen & shard.owned:
                raise SimulationError(f"units {seen & shard.owned:#x} have two owners")
            seen |= shard.owned
        if self.world.all_servers_live:
            missing = (1 << self.world.map.owners.size) - 1 & ~seen & ~self.world.carried
            if missing:
                raise SimulationError(f"units {missing:#x} have no owner")

    # --- the end ------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """At rest: every row says that each call counts exactly once, on the server that owns it."""
        world = self.world
        for shard in world.live_shards():
            self.check_shard(shard)
        self._check_strangers()
        error = world.coordinator.session.error
        if "came back without" in error and not self.torn:
            raise SimulationError(f"nothing was lost, and all the same {error}")
        if "has no log of what" in error:
            raise SimulationError(f"no log is ever removed, and all the same {error}")
        if error or world.lives.abandoned:
            return
        if any(member.preempted for member in world.coordinator.session.members.trainers):
            return  # the rest is for the next holders
        undone = [stream for stream in world.scripts if not world.history.is_done(stream)]
        if undone:
            raise SimulationError(f"all is over, and leases {undone} are not done")
        own = world.planted.make_trainer is type(world.planted).make_trainer  # others make calls of their own
        again = world.former or world.lives.resumed or world.lives.rolled_back
        if own and not again:  # a server that was started again counts from 0
            self._check_counts()

    def _check_counts(self) -> None:
        """Check that servers count as applied every acknowledged call, and no more than were begun."""
        history = self.world.history
        counters = [shard.counters for server in self.world.servers for shard in server.shards]
        real = [op for op in history.ops if history.units(op)]
        sure = [op for op in real if history.is_acknowledged(op)]
        units = sum(map(history.units, sure)), sum(map(history.units, real))
        require_between(len(sure), sum(one.pushes_applied for one in counters), len(real), "pushes_applied")
        require_between(units[0], sum(one.updates_applied for one in counters), units[1], "updates_applied")

    def _check_strangers(self) -> None:
        history = self.world.history
        for table, known in (("item", history.ops_of), ("user", SHARED_KEYS)):
            for key, row in rows_of(self.world.servers, table).items():
                if key not in known and row != ABSENT:
                    raise SimulationError(f"row {key:#x} of {table} was never pushed")
