"""Admission and eviction in simulated clusters: replay, moves and the number of servers change no row.

One trainer makes pushes and maintenances of a table whose keys earn their rows and whose rows leave by age,
one after the other. A dict does the same in the same order: at the end the servers have its rows, when each
was last pushed, and its counts of keys without a row, whichever processes died and units moved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from pslib.client.calls import Moment, PushName
from pslib.client.session import ClientSession
from pslib.shard import partition_image
from pslib.shard.replay import Replay
from pslib.shard.shard import Shard
from pslib.table.initializers import Constant
from pslib.table.policies import ByAge, ByCount
from pslib.table.tables import PartSpec, TableSpec
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.runs import first_error, with_log
from tests.simulation.cluster.trainer import Trainer
from tests.simulation.cluster.workload import SGD_1
from tests.simulation.cluster.world import PARTITION_BITS, Planted, World
from tests.simulation.test_simulation_steps import ServersDie, use
from tests.support.definitions.table import unmix64

SEEDS = 3
FINDS, BUGS = 4, 60
"""A seed from which each of the planted bugs is soon found, to save the time of the others."""
COUNT, KEEP, AGE = 3, 0.5, 5
EARNED = TableSpec(
    "earned",
    (PartSpec("v", 1, SGD_1, Constant(0.0)),),
    admission=ByCount(COUNT, KEEP),
    eviction=(ByAge(AGE),),
)
PARTITIONS = (0, 1, 7, 20, 21, 40, 41, 63)
KEYS = [unmix64(partition << (64 - PARTITION_BITS) | low) for partition in PARTITIONS for low in (1, 2)]
STREAM = 1 << 63 | 1 << 52
OPS, MAINTAINED_EVERY = 24, 4
LONG = 16
"""A step between two pushes now and then: all rows are older than `AGE` after it."""


@dataclass(frozen=True)
class Op:
    """A push of some keys, or a maintenance when there are none; what the push adds is its number."""

    number: int
    step: int
    keys: tuple[int, ...]


class Earned:
    """The table as a dict: ``[value, last pushed]`` of each row, and counts of keys without one."""

    def __init__(self) -> None:
        self.rows: dict[int, list[float]] = {}
        self.counts: dict[int, int] = {}
        self.evicted = 0

    def take(self, op: Op) -> None:
        """One call, all of it."""
        if not op.keys:
            self._maintain(op.step)
        for key in op.keys:
            if key not in self.rows:
                self.counts[key] = self.counts.get(key, 0) + 1
                if self.counts[key] < COUNT:
                    continue
                del self.counts[key]
                self.rows[key] = [0.0, 0.0]
            self.rows[key] = [self.rows[key][0] + op.number, op.step]

    def _maintain(self, step: int) -> None:
        halves = {key: int(count * KEEP) for key, count in self.counts.items()}
        self.counts = {key: count for key, count in halves.items() if count}
        old = [key for key, (_value, seen) in self.rows.items() if step - seen > AGE]
        self.evicted += len(old)
        for key in old:
            del self.rows[key]


def calls(choice: random.Random) -> list[Op]:
    """Return the trainer's calls; some keys come often, some seldom."""
    found, step = [], 0
    for number in range(OPS):
        step += LONG if choice.random() < 0.05 else 1
        often, seldom = choice.sample(KEYS[::2], 4), choice.sample(KEYS[1::2], 2)
        maintains = (number + 1) % MAINTAINED_EVERY == 0
        found.append(Op(number, step, () if maintains else tuple(sorted({*often, *seldom}))))
    return found


class OneAfterTheOther(Trainer):
    """Does what every trainer does; the first also makes the calls of its world, each after the last."""

    world: PolicyWorld
    waits = False

    @property
    def done(self) -> bool:
        return super().done and not (self._is_first and self.world.left)

    @property
    def _is_first(self) -> bool:
        return self.name == "trainer-0"

    def _begin(self) -> None:
        if self._is_first and self.world.left and not self.waits:
            self.waits = True
            op = self.world.left[0]
            self._call(partial(self._make, op), partial(self._made, op))
        super()._begin()

    def _make(self, op: Op, session: ClientSession, now_s: float) -> int:
        name, moment = PushName(STREAM, op.number), Moment(op.step)
        if not op.keys:
            return session.maintain(now_s, name, EARNED.name, True, moment)
        gradients = np.full((len(op.keys), 1), -op.number, np.float32)
        return session.push(
            now_s, name, {EARNED.name: (np.array(op.keys, np.uint64), gradients)}, None, moment
        )

    def _made(self, op: Op, _number: int) -> None:
        self.waits = False
        self.world.left.remove(op)
        self.world.made.take(op)


class PolicyWorld(World):
    """Servers die and come back, units move, there are more servers and fewer."""

    def __init__(self, seed: int, **planted: Any) -> None:
        about = {"make_mishaps": ServersDie, "make_trainer": OneAfterTheOther, "change_config": with_log}
        super().__init__(seed, Planted(**about | planted))
        self.restless = list(PARTITIONS)
        self.left = calls(random.Random(seed))
        self.made = Earned()

    def run(self) -> PolicyWorld:
        super().run()
        if self.all_servers_live and not self.coordinator.session.error and not self.left:
            self._check()
        return self

    def _check(self) -> None:
        rows: dict[int, list[float]] = {}
        counts: dict[int, int] = {}
        for shard in self.live_shards():
            rows |= _rows_of(shard)
            counts |= _counts_of(shard)
        for what, found, expected in (("rows", rows, self.made.rows), ("counts", counts, self.made.counts)):
            if found != expected:
                raise SimulationError(f"seed {self.seed}: {what} are {found}, expected {expected}")


def _rows_of(shard: Shard) -> dict[int, list[float]]:
    """``[value, last pushed]`` of each row."""
    exported = [shard.stores[EARNED.name].export_partition(partition) for partition in PARTITIONS]
    return {
        key: [float(value), float(seen)]
        for keys, values, state in exported
        for key, value, seen in zip(keys.tolist(), values[:, 0], state[:, 0], strict=True)
    }


def _counts_of(shard: Shard) -> dict[int, int]:
    exported = [shard.stores[EARNED.name].export_counts(partition) for partition in PARTITIONS]
    return {
        key: count
        for keys, counts in exported
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True)
    }


@pytest.fixture(autouse=True)
def earning(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, EARNED)


def caught_error() -> str:
    """Return the error of the first world in which anything is wrong."""
    return first_error(lambda seed: PolicyWorld(seed).run(), range(FINDS, BUGS))


def test_rows_that_come_by_count_and_leave_by_age_are_those_of_a_dict_through_deaths_and_moves() -> None:
    worlds = [PolicyWorld(seed).run() for seed in range(SEEDS)]
    assert sum(not world.left for world in worlds) == SEEDS
    assert (
        min(sum(world.made.evicted for world in worlds), sum(map(len, (w.made.counts for w in worlds))))
        > SEEDS
    )
    assert sum(server.generation - 1 for world in worlds for server in world.servers) > SEEDS // 2
    assert sum(world.map.version >> 16 for world in worlds) > 2 * SEEDS


def test_counts_that_stay_behind_when_their_partition_moves_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = partition_image._add_table

    def forgets(shard: Shard, name: str, unit: int, keys: dict[str, Any], content: dict[str, Any]) -> None:
        add(shard, name, unit, keys, content)
        if name == EARNED.name:
            keys[f"{name}.counted"], content[f"{name}.counts"] = (
                np.empty(0, np.uint64),
                np.empty((1, 0), np.uint32),
            )

    monkeypatch.setattr(partition_image, "_add_table", forgets)
    assert "expected" in caught_error()


def test_a_replay_in_which_nothing_leaves_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    maintain, replays = Shard.maintain_units, Replay._message
    replaying: list[bool] = []

    def replayed(replay: Replay, *about: Any) -> None:
        replaying.append(True)
        replays(replay, *about)
        replaying.clear()

    def skipped(shard: Shard, *about: Any) -> None:
        if not replaying:
            maintain(shard, *about)

    monkeypatch.setattr(Replay, "_message", replayed)
    monkeypatch.setattr(Shard, "maintain_units", skipped)
    assert "expected" in caught_error()


def test_a_server_that_goes_by_what_it_has_seen_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows leave by the age of the server's own last push, not by the step that the record names."""
    maintain, pushed = Shard.maintain_units, Shard.push_steps
    seen: dict[int, int] = {}

    def noted(shard: Shard, message: Any, *about: Any) -> Any:
        seen[id(shard)] = max(seen.get(id(shard), 0), message.step)
        return pushed(shard, message, *about)

    def by_own(shard: Shard, table: str, units: int, step: int, *about: Any) -> None:
        maintain(shard, table, units, min(step, seen.get(id(shard), 0)), *about)

    monkeypatch.setattr(Shard, "push_steps", noted)
    monkeypatch.setattr(Shard, "maintain_units", by_own)
    assert "expected" in caught_error()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_policies_are_those_of_a_dict_in_many_more_worlds() -> None:
    for seed in range(SEEDS, 400):
        PolicyWorld(seed).run()
