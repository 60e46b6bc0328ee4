"""A reader that follows a table: whatever happens meanwhile, it comes to have the rows of the servers."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from pslib.client import following
from pslib.client.following import Following, Update
from pslib.errors import RemoteProtocolError
from pslib.shard import changes
from pslib.shard.change_log import ChangeLog
from pslib.table.optimizers import SGD
from pslib.table.policies import ByAge, ByCount
from pslib.wire.messages import Changed, Changes, Erase, Maintain, Pull, Push, Setup
from tests.shard.test_maintain import ALL, BITS, NO_BLOCKS, PLAIN, many
from tests.support.simulated.protocol_worlds import OneServer, move_unit

BLOCKS, FLOATS, KEYS = 4, 8, many(300)
DENSE = np.arange(BLOCKS, dtype=np.uint32)


class Copy:
    """Rows of a scorer that takes updates, in a dict."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.dense = np.empty(0, np.float32)

    def take(self, update: Update) -> None:
        for piece in update.pieces:
            whole = set(piece.whole.tolist())
            inside = np.isin(partition_of(np.array(list(self.rows), np.uint64), BITS), list(whole))
            for key in np.array(list(self.rows), np.uint64)[inside].tolist():
                del self.rows[key]
            for key, row in zip(piece.keys.tolist(), piece.rows, strict=True):
                self.rows[key] = row.tobytes()
        self.dense = update.dense

    def of(self, keys: NDArray[np.uint64]) -> list[bytes]:
        return [self.rows.get(key, bytes(12)) for key in keys.tolist()]


class World:
    """Servers of one table that push, erase, evict, move and lose their logs, by a seed."""

    def __init__(self, seed: int, servers: int = 3, shards: int = 2) -> None:
        self.choice, self.step, self.version = random.Random(seed), 0, 1
        spec = replace(PLAIN, eviction=(ByAge(30),), admission=ByCount(2) if seed % 2 else None)
        setup = Setup({"tables": [spec.to_dict()]}, FLOATS, SGD().to_dict(), np.zeros(FLOATS, np.float32))
        units = np.arange(16 + BLOCKS) % servers
        self.servers = [
            OneServer(shards, np.flatnonzero(units == number).tolist(), setup=setup)
            for number in range(servers)
        ]
        self.owner = {unit: int(units[unit]) for unit in range(16 + BLOCKS)}

    def change(self) -> None:
        self.step += 1
        kind = self.choice.choices(["push", "erase", "maintain", "move", "lose"], [12, 2, 1, 2, 0.3])[0]
        getattr(self, kind)()

    def some_keys(self) -> NDArray[np.uint64]:
        return np.array(sorted(self.choice.sample(range(KEYS.size), 20)), np.uint64)

    def push(self) -> None:
        keys = self.some_keys()
        values = np.array([[self.choice.random()] * 3 for _ in keys], np.float32)
        block = self.choice.randrange(BLOCKS)
        for server in self.servers:
            dense = DENSE[block : block + 1], np.ones(2, np.float32)
            server.ask(Push(7, self.step, 0, 0, 0, {"t": keys}, {"t": values}, *dense, step=self.step))

    def erase(self) -> None:
        for server in self.servers:
            server.ask(Erase(8, self.step, 0, 0, 0, {"t": self.some_keys()}))

    def maintain(self) -> None:
        for server in self.servers:
            server.ask(Maintain(9, self.step, 0, 0, 0, "t", self.step, 0.0, False, ALL))

    def move(self) -> None:
        unit, target = self.choice.randrange(16 + BLOCKS), self.choice.randrange(len(self.servers))
        if (source := self.owner[unit]) != target:
            self.version += 1
            move_unit(unit, self.servers[source], self.servers[target], owner=target, version=self.version)
            self.owner[unit] = target

    def lose(self) -> None:
        """Lose what tells changes, as another life of a server has."""
        for shard in self.choice.choice(self.servers).shards:
            shard.changes.clear()

    def rows(self) -> list[bytes]:
        found = np.zeros((KEYS.size, 3), np.float32)
        for server in self.servers:
            answer = server.ask(Pull({"t": KEYS}, NO_BLOCKS))
            mine = ~np.isin(partition_of(KEYS, BITS), answer.refused_units)
            found[mine] = answer.rows["t"][mine]
        return [row.tobytes() for row in found]

    def dense(self) -> list[float]:
        found = np.zeros((BLOCKS, 2), np.float32)
        for server in self.servers:
            answer = server.ask(Pull({}, DENSE))
            mine = ~np.isin(16 + DENSE, answer.refused_units)
            found[mine] = answer.dense.reshape(BLOCKS, 2)[mine]
        return found.ravel().tolist()


def follower() -> Following:
    return Following("t", 3, FLOATS, 16, BLOCKS)


def play_round(world: World, reader: Following, lost: float = 0.0, changed: float = 0.0) -> Update | None:
    """One round; None where a question was lost, or a unit was at none of the servers that were asked."""
    reader.begin([str(number) for number in range(len(world.servers))])
    while request := reader.next_request():
        address, message = request
        if world.choice.random() < changed:
            world.change()
        answer = world.servers[int(address)].ask(message)
        assert isinstance(answer, Changed), answer
        if world.choice.random() < lost:
            reader.failed(address)
            return None
        reader.take(address, answer)
    return reader.take_update() if reader.is_complete else None


@pytest.mark.parametrize("seed", range(40))
def test_a_reader_has_the_rows_of_the_servers_bit_by_bit_after_every_quiet_round(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangeLog.__init__, "__defaults__", (64,))
    monkeypatch.setattr(changes, "CHANGES_MAX", 16)
    monkeypatch.setattr(following, "WHOLE_ROWS", 20)
    world, reader, copy = World(seed), follower(), Copy()
    versions = 0
    for _ in range(25):
        for _ in range(world.choice.randrange(6)):
            world.change()
        update = play_round(world, reader, lost=0.05, changed=0.2)  # what it has taken counts all the same
        if update is not None:
            copy.take(update)
        quiet = play_round(world, reader)
        assert quiet is not None
        copy.take(quiet)
        assert copy.of(KEYS) == world.rows()
        assert copy.dense.tolist() == world.dense()
        versions += update is not None
    assert versions > 0, "no round among changes has ended: this test tells nothing of them"


def test_a_round_has_all_that_was_acknowledged_before_it_began() -> None:
    world, reader, copy = World(2), follower(), Copy()
    for _ in range(30):
        world.push()
        before = world.rows()
        update = None
        while update is None:
            update = play_round(world, reader)
        copy.take(update)
        assert copy.of(KEYS) == before


def test_a_quiet_round_asks_each_server_once_and_brings_nothing() -> None:
    world, reader = World(2), follower()
    world.push()
    assert play_round(world, reader) is not None
    reader.begin(["0", "1", "2"])
    asked = 0
    while request := reader.next_request():
        reader.take(request[0], world.servers[int(request[0])].ask(request[1]))
        asked += 1
    update = reader.take_update()
    assert asked == 3
    assert update.rows == update.bytes == 0


def test_a_round_without_a_server_that_owns_units_is_no_version() -> None:
    world, reader = World(2), follower()
    reader.begin(["0", "1"])
    while request := reader.next_request():
        reader.take(request[0], world.servers[int(request[0])].ask(request[1]))
    assert not reader.is_complete


def test_dense_parameters_of_an_update_do_not_change_with_the_next_one() -> None:
    world, reader = World(2), follower()
    first = play_round(world, reader)
    assert first is not None
    before = first.dense.tolist()
    world.push()
    second = play_round(world, reader)
    assert second is not None
    assert first.dense.tolist() == before != second.dense.tolist()


def test_a_round_ends_where_a_partition_leaves_before_it_was_read_or_a_log_begins_anew() -> None:
    world, reader = World(2, servers=2), follower()
    assert play_round(world, follower()) is not None
    world.push()
    assert world.servers[0].shards[0].changes.of("t").end > 0
    reader.begin(["0", "1"])
    asked = 0
    while request := reader.next_request():
        address, message = request
        reader.take(address, world.servers[int(address)].ask(message))
        asked += 1
        if asked == 1:  # it has told that its partitions are stale, and where both logs end
            move_unit(0, world.servers[0], world.servers[1], owner=1, version=2)
            for shard in world.servers[0].shards:
                shard.changes.clear()
        assert asked < 20
    assert reader.is_complete


def test_a_server_that_failed_is_asked_first_in_the_next_round() -> None:
    world, reader = World(2), follower()
    assert play_round(world, reader) is not None
    reader.failed("2")
    reader.begin(["0", "1", "2"])
    request = reader.next_request()
    assert request is not None
    assert request[0] == "2"
    assert not request[1].since.size


@pytest.mark.parametrize(
    ("changes_", "why"),
    [
        ({"rows": np.zeros((1, 2), np.float32)}, r"expected \(0, 3\), got \(1, 2\)"),
        ({"stale": np.array([16], np.uint32), "stale_rows": np.ones(1, np.uint32)}, "partitions in 0..15"),
        ({"ends": np.zeros(5, np.uint64)}, "a position of each shard thread"),
        ({"dense_versions": {}}, "versions of 4 dense blocks"),
        ({"dense": np.zeros(3, np.float32)}, "expected 4 dense parameters"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(changes_: dict[str, object], why: str) -> None:
    world, reader = World(2, servers=2), follower()
    reader.begin(["0", "1"])
    request = reader.next_request()
    assert request is not None
    assert isinstance(request[1], Changes)
    answer = world.servers[int(request[0])].ask(request[1])
    with pytest.raises(RemoteProtocolError, match=why):
        reader.take(request[0], replace(answer, **changes_))
