"""Steps that trainers make together, and maintenances of tables, in simulated clusters whose servers die."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pslib.client.calls import BEGINNING, Counts, PushName
from pslib.client.session import ClientSession
from pslib.shard.serving import ShardPart
from pslib.shard.shard import Shard
from pslib.shard.sync_steps import SyncSteps
from pslib.table.policies import Score
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.messages import Maintain, Setup
from tests.simulation.cluster import server as simulated_server
from tests.simulation.cluster import trainer as simulated_trainer
from tests.simulation.cluster import workload
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.in_step import RankedWorld
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.runs import first_error_of_bug, with_log
from tests.simulation.cluster.steps import ADAGRAD, TABLE
from tests.simulation.cluster.trainer import Trainer
from tests.simulation.cluster.workload import SGD_1
from tests.simulation.cluster.world import PARTITION_BITS, Planted, World
from tests.simulation.test_simulation_bugs import MarksStayBehind
from tests.support.definitions.table import unmix64

SEEDS, BUGS = 24, 60
FOUND = (53, 73)
"""Steps that waited for credit which their own parts held."""


def use(monkeypatch: pytest.MonkeyPatch, table: TableSpec, **changes: Any) -> None:
    """Let all tables of a world be those that it has, and one more."""
    tables = [*workload.SETUP.tables["tables"], table.to_dict()]
    setup = replace(workload.SETUP, tables={"tables": tables}, **changes)
    assert isinstance(setup, Setup)
    for module in (simulated_server, simulated_trainer):
        monkeypatch.setattr(module, "SETUP", setup)
    monkeypatch.setattr(simulated_trainer, "DIMS", workload.DIMS | {table.name: table.dim})


class ServersDie(Mishaps):
    """Servers and the coordinator die, are silent, and find no space."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        kinds: list[tuple[Callable[[], None], int]] = [(self._kill_server, 4), (self._kill_coordinator, 2)]
        return [*kinds, (self._forget_a_server, 1), (self._fill_disk, 1)]


# --- consistency: sync ---


def step_world(seed: int, **planted: Any) -> RankedWorld:
    """Trains in step while servers die and units of its keys move."""
    return RankedWorld(seed, **{"make_mishaps": ServersDie, "change_config": with_log} | planted)


@pytest.fixture
def in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, TABLE, dense_optimizer=ADAGRAD.to_dict())


@pytest.mark.usefixtures("in_step")
def test_steps_have_the_bits_of_the_reference_whichever_server_dies() -> None:
    worlds = [step_world(seed).run() for seed in (*range(SEEDS), *FOUND)]
    assert sum(server.generation - 1 for world in worlds for server in world.servers) > SEEDS // 2
    assert sum(world.coordinator.generation - 1 for world in worlds) > SEEDS // 4
    assert sum(world.map.version >> 16 for world in worlds) > 2 * SEEDS


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("in_step")
def test_steps_have_the_bits_of_the_reference_in_many_more_worlds() -> None:
    for seed in range(SEEDS, 1000):
        step_world(seed).run()


class WithoutWaiting(SyncSteps):
    """Applies every push by itself."""

    def _step_of(self, message: Any) -> Any:
        step = super()._step_of(message)
        step.contributors = (message.rank,)
        return step


class KeepsWhatHasLeft(SyncSteps):
    """Does not hear of units that move away."""

    def unit_left(self, unit: int, owner: int) -> None:
        return


class SumsBackwards(SyncSteps):
    """Sums from the highest rank down."""

    def push_steps(self, message: Any, waiter: Any) -> Any:
        ranks = message.sync["contributors"]
        backwards = {**message.sync, "contributors": 10 - ranks[::-1]}
        return super().push_steps(replace(message, rank=10 - message.rank, sync=backwards), waiter)


class HalfAStep(SyncSteps):
    """Says that a push is applied when it is only held."""

    def push_steps(self, message: Any, waiter: Any) -> Any:
        yield from super().push_steps(message, waiter)
        held = [one for step in self._steps.values() for one in step.held if waiter in one.waiters]
        for one in held:
            one.waiters.remove(waiter)
            self._over.append((waiter, {}))


def shard_with(steps: type[SyncSteps]) -> Any:
    def make(*arguments: Any) -> Shard:
        shard = Shard(*arguments)
        shard.sync = steps(shard)
        return shard

    return make


@pytest.mark.usefixtures("in_step")
@pytest.mark.parametrize(
    "planted",
    [
        *({"make_shard": shard_with(kind)} for kind in (HalfAStep, KeepsWhatHasLeft, WithoutWaiting)),
        {"make_shard": shard_with(SumsBackwards)},
        {"marks": MarksStayBehind},
    ],
    ids=["held", "leaves", "waits", "order", "marks"],
)
def test_a_bug_in_the_steps_is_caught(planted: dict[str, Any]) -> None:
    assert first_error_of_bug(
        lambda seed: step_world(seed, **planted).run(), lambda seed: step_world(seed).run(), range(BUGS)
    )


# --- maintenance ---

ALL = np.array([unmix64(p << (64 - PARTITION_BITS) | 1) for p in range(1 << PARTITION_BITS)], np.uint64)
WORTH = TableSpec("worth", (PartSpec("v", 1, SGD_1),), score=Score(decay=0.5))
SHOWS = 2.0**60
"""Shows of one row in each partition; a maintenance halves them, so the rest counts maintenances exactly."""
MAINTENANCES = 3


class Maintainer(Trainer):
    """Does what every trainer does; it shows one row in each partition first, under a name that all share."""

    started = acknowledged = 0
    shows, shown, waits = False, False, False

    @property
    def done(self) -> bool:
        return super().done and self.shown and self.started == MAINTENANCES and not self.waits

    def _begin(self) -> None:
        if not self.shows:
            self.shows = True
            self._call(self._show, self._is_shown)
        if self.shown and not self.waits and self.started < MAINTENANCES:
            self.started, self.waits = self.started + 1, True
            self._call(self._maintain, self._maintained)
        super()._begin()

    def _show(self, session: ClientSession, now_s: float) -> int:
        rows = {"worth": (ALL, np.zeros((ALL.size, 1), np.float32))}
        shows = Counts(np.full(ALL.size, SHOWS, np.float32), np.zeros(ALL.size, np.float32))
        name = PushName(1 << 63 | 1 << 51, 0)
        return session.push(now_s, name, rows, None, BEGINNING, {"worth": shows})

    def _is_shown(self, _number: int) -> None:
        self.shown = True

    def _maintain(self, session: ClientSession, now_s: float) -> int:
        number = int(self.name.partition("-")[2])
        name = PushName(1 << 63 | 1 << 50 | number, self.started)
        return session.maintain(now_s, name, "worth", True, BEGINNING)

    def _maintained(self, _number: int) -> None:
        self.acknowledged, self.waits = self.acknowledged + 1, False


class AllDie(ServersDie):
    """Trainers, too."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [*super()._kinds(), (self._kill_trainer, 2)]


def maintained(seed: int, **planted: Any) -> World:
    """One world; raises when a row of it was maintained too often or not."""
    about = {"make_mishaps": AllDie, "make_trainer": Maintainer, "change_config": with_log}
    world = World(seed, Planted(**about | planted)).run()
    trainers = [one for one in world.trainers if isinstance(one, Maintainer)]
    least, most = sum(one.acknowledged for one in trainers), sum(one.started for one in trainers)
    shards = list(world.live_shards())
    if not (world.all_servers_live and any(one.shown for one in trainers)):
        return world  # one that died when all was done has not come back, or nothing was done
    states = [shard.stores["worth"].export_partition(p)[2] for shard in shards for p in range(ALL.size)]
    times = [round(math.log2(SHOWS / float(row[0]))) for state in states for row in state]
    if len(times) != ALL.size or not all(least <= one <= most for one in times):
        raise SimulationError(f"seed {seed}: expected {least}..{most} maintenances, got {times}")
    return world


@pytest.fixture
def maintaining(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, WORTH)


@pytest.mark.usefixtures("maintaining")
def test_every_maintenance_happens_once_whichever_server_dies() -> None:
    worlds = [maintained(seed) for seed in range(SEEDS)]
    assert sum(server.generation - 1 for world in worlds for server in world.servers) > SEEDS // 2
    assert sum(getattr(one, "acknowledged", 0) for world in worlds for one in world.trainers) > 3 * SEEDS


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("maintaining")
def test_every_maintenance_happens_once_in_many_more_worlds() -> None:
    for seed in range(SEEDS, 600):
        maintained(seed)


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


@pytest.mark.usefixtures("maintaining")
@pytest.mark.parametrize(
    "planted",
    [{"make_shard": MaintainsAgain}, {"make_shard": KeepsUnitsForItself}, {"marks": MarksStayBehind}],
    ids=["again", "never", "moves"],
)
def test_a_bug_in_a_maintenance_is_caught(planted: dict[str, Any]) -> None:
    assert first_error_of_bug(
        lambda seed: maintained(seed, make_mishaps=ServersDie, **planted),
        lambda seed: maintained(seed, make_mishaps=ServersDie),
        range(BUGS),
    )
