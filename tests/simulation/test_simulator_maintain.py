"""Maintenances in worlds where messages are lost, doubled and late, units move and trainers die."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from pslib.client.calls import BEGINNING
from pslib.client.session import PushName
from pslib.shard.shard import Shard, ShardPart
from pslib.table.policies import Score
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.applied_pushes import Marks
from pslib.wire.messages import Maintain, Push, Setup
from tests.support import simulated_processes, simulator
from tests.support.definitions import unmix64
from tests.support.invariants import SimulationError
from tests.support.simulated_processes import PARTITION_BITS, SGD_1
from tests.support.simulator import World

PARTITIONS = 1 << PARTITION_BITS
KEYS = np.array([unmix64(p << (64 - PARTITION_BITS) | 1) for p in range(PARTITIONS)], np.uint64)
WORTH = TableSpec("worth", (PartSpec("v", 1, SGD_1),), score=Score(decay=0.5))
SHOWS = 2.0**60
"""Of one row in each partition; a maintenance halves them, so what is left counts maintenances exactly."""
NO_BLOCKS, NO_FLOATS = np.empty(0, np.uint32), np.empty(0, np.float32)


class MaintainingTrainer(simulated_processes.Trainer):
    """Does what every trainer does, and four maintenances on top."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.started = self.acknowledged = 0
        self._maintenances: set[int] = set()

    @property
    def idle(self) -> bool:
        return super().idle and not (self.running and (self._maintenances or self.started < 4))

    def _begin(self) -> None:
        if self.started < 4 and self.world.random.random() < 0.3:
            name = PushName(1 << 63 | 1 << 50 | self.number, self.started)
            self._maintenances.add(self.session.maintain(self.world.now_s, name, "worth", True, BEGINNING))
            self.started += 1
        super()._begin()

    def _completed(self) -> None:
        mine = [done for done in self.session.completed if done.call in self._maintenances]
        self.session.completed = [one for one in self.session.completed if one not in mine]
        for done in mine:
            assert done.error is None, done.error
            self._maintenances.remove(done.call)
            self.acknowledged += 1
        super()._completed()


@pytest.fixture(autouse=True)
def maintaining(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [*simulated_processes.SETUP.tables["tables"], WORTH.to_dict()]
    setup = replace(simulated_processes.SETUP, tables={"tables": tables})
    assert isinstance(setup, Setup)
    monkeypatch.setattr(simulated_processes, "SETUP", setup)
    monkeypatch.setattr(simulated_processes, "DIMS", simulated_processes.DIMS | {"worth": 1})
    monkeypatch.setattr(simulator, "Trainer", MaintainingTrainer)


def run(seed: int, **planted: Any) -> World:
    """One world, whose rows were shown before it begins; raises when any was maintained too often or not."""
    world = World(seed, **planted)
    gradients, shows = np.zeros((PARTITIONS, 1), np.float32), np.full(PARTITIONS, SHOWS, np.float32)
    push_of = partial(Push, 1 << 63 | 1 << 51, 0, 0, 0, 0, blocks=NO_BLOCKS, dense=NO_FLOATS)
    first = push_of({"worth": KEYS}, {"worth": gradients}, shows={"worth": shows})
    shards = [shard for server in world.servers for shard in server.shards]
    for shard in shards:
        shard.push(first)
        shard.counters.pushes_applied = shard.counters.updates_applied = shard.counters.rows_pushed = 0
    world.run()
    trainers = [one for one in world.trainers if isinstance(one, MaintainingTrainer)]
    least = sum(one.acknowledged for one in trainers)
    most = sum(one.started for one in trainers)
    assert least == most or any(not one.running for one in trainers)
    found = []
    for shard in shards:
        for partition in range(PARTITIONS):
            _keys, _weights, state = shard.stores["worth"].export_partition(partition)
            found += [SHOWS / float(row[0]) for row in state]
    times = [round(math.log2(one)) for one in found]
    if len(times) != PARTITIONS or not all(least <= one <= most for one in times):
        raise SimulationError(f"seed {seed}: expected {least}..{most} maintenances, got {times}")
    return world


def test_every_maintenance_happens_once_in_every_partition() -> None:
    worlds = [run(seed) for seed in range(40)]
    assert sum(world.map.version - 1 for world in worlds) > 200
    assert sum(trainer.started for world in worlds for trainer in world.trainers) > 200  # type: ignore[attr-defined]


class MaintainsAgain(Shard):
    """A maintenance leaves no marks: its second copy counts."""

    def maintain(self, message: Maintain) -> ShardPart:
        record, self.marks.record = self.marks.record, lambda *_: None  # type: ignore[method-assign]
        try:
            return super().maintain(message)
        finally:
            self.marks.record = record  # type: ignore[method-assign]


class KeepsUnitsForItself(Shard):
    """Says nothing of units that it does not own: they are never maintained."""

    def maintain(self, message: Maintain) -> ShardPart:
        super().maintain(message)
        return ShardPart({})


class StaysBehind(Marks):
    """Marks do not move with their unit."""

    def export(self, unit: int) -> dict[str, Any]:
        return {"done_below": 0, "streams": []}


@pytest.mark.parametrize(
    "planted",
    [{"make_shard": MaintainsAgain}, {"make_shard": KeepsUnitsForItself}, {"marks": StaysBehind}],
    ids=["again", "never", "moves"],
)
def test_a_planted_bug_is_caught(planted: dict[str, Any]) -> None:
    def is_caught(seed: int) -> bool:
        try:
            run(seed, **planted)
        except SimulationError:
            return True
        return False

    assert any(is_caught(seed) for seed in range(100))
