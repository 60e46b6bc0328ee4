"""Sync steps in worlds where messages are lost, doubled and late and units move: the bits of a reference.

The reference is a dict of rows and NumPy: for each step gradients are summed in the order of ranks, then one
Adagrad step is taken. Gradients are no whole numbers, so every other order of summing shows in the bits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pslib.client.calls import Manner, Moment
from pslib.client.session import ClientSession, PushName
from pslib.errors import PslibError
from pslib.shard.shard import Shard
from pslib.shard.sync_steps import SyncSteps
from pslib.table.initializers import Constant
from pslib.table.optimizers import Adagrad
from pslib.table.partition_map import PartitionMap
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.applied_pushes import Marks
from pslib.wire.messages import Message, Setup
from tests.support.definitions.optimizers import adagrad_step
from tests.support.definitions.table import unmix64
from tests.support.simulated import processes as simulated_processes
from tests.support.simulated import simulator
from tests.support.simulated.invariants import SimulationError, check_owners
from tests.support.simulated.processes import Asker
from tests.support.simulated.scripts import DENSE_LENGTH
from tests.support.simulated.simulator import World

ADAGRAD = Adagrad(0.1)
KEYS = np.array([unmix64(partition << 60 | 5) for partition in (0, 1, 2, 3, 7, 7 | 8, 9, 12)], np.uint64)
TABLE = TableSpec("summed", (PartSpec("v", 2, ADAGRAD, Constant(0.5)),))
RATES = (0.25, 0.5, 1.0)
"""Of the first steps; all later ones have the last."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Push:
    keys: NDArray[np.uint64]
    gradients: Floats
    dense: Floats


class PushPlan:
    """Who pushes what in which step."""

    def __init__(self, choice: random.Random) -> None:
        numbers = np.random.default_rng(choice.getrandbits(32))
        self.of_rank = [
            [self._push(choice, numbers) for _ in range(choice.randint(0, 5))]
            for _ in range(choice.randint(1, 4))
        ]

    @staticmethod
    def _push(choice: random.Random, numbers: np.random.Generator) -> Push:
        keys = np.array(choice.sample(KEYS.tolist(), choice.randint(0, 5)), np.uint64)
        gradients = numbers.standard_normal((keys.size, 2)).astype(np.float32)
        return Push(keys, gradients, numbers.standard_normal(DENSE_LENGTH).astype(np.float32))

    def contributors(self, step: int) -> tuple[int, ...]:
        return tuple(rank for rank, pushes in enumerate(self.of_rank) if step < len(pushes))


def rate_of(step: int) -> float:
    return RATES[min(step, len(RATES) - 1)]


class Reference:
    """Rows and dense parameters after each step."""

    def __init__(self, plan: PushPlan) -> None:
        self.rows = {int(key): np.full(2, 0.5, np.float32) for key in KEYS}
        self.state = {key: np.zeros(2, np.float32) for key in self.rows}
        self.dense, self._dense_state = np.zeros((2, DENSE_LENGTH), np.float32)
        self.after = [self._picture()]
        for step in range(max(map(len, plan.of_rank))):
            self._take(step, [plan.of_rank[rank][step] for rank in plan.contributors(step)])

    def _picture(self) -> tuple[bytes, bytes]:
        return np.array(list(self.rows.values())).tobytes(), self.dense.tobytes()

    def _take(self, step: int, pushes: list[Push]) -> None:
        optimizer = Adagrad(float(np.float32(ADAGRAD.learning_rate) * np.float32(rate_of(step))))
        sums: dict[int, Floats] = {}
        for push in pushes:
            for key, gradient in zip(push.keys.tolist(), push.gradients, strict=True):
                sums[key] = sums[key] + gradient if key in sums else gradient
        for key, gradient in sums.items():
            adagrad_step(optimizer, self.rows[key], self.state[key], gradient)
        dense = pushes[0].dense
        for push in pushes[1:]:
            dense = dense + push.dense
        adagrad_step(optimizer, self.dense, self._dense_state, dense)
        self.after.append(self._picture())


class SyncTrainer(Asker):
    """Pulls, pushes, and waits until the step is applied everywhere; then the next one."""

    def __init__(self, world: SyncWorld, rank: int) -> None:
        super().__init__(world)
        self.session = ClientSession(self.requests, world.map, simulated_processes.DIMS, DENSE_LENGTH)
        self.world: SyncWorld = world
        self.rank, self.step, self.lost = rank, 0, False
        self._call, self._pulls = 0, False
        self.idle = False

    def turn(self) -> None:
        """Pull for the next step, or end."""
        world = self.world
        if self.step == len(world.plan.of_rank[self.rank]):
            self.idle = True
            return
        self._pulls = True
        self._call = self.session.pull(world.now_s, {"summed": KEYS}, True, Moment(self.step))
        self.send()

    def answered(self, ticket: int, message: Message) -> None:
        self.session.receive(self.world.now_s, ticket, message)
        done, self.session.completed = self.session.completed, []
        for completed in done:
            if completed.error:
                raise SimulationError(f"rank {self.rank}: {completed.error}")
            if self._pulls:
                self._check(self.session.pulled(completed.call))
                self.world.after(self.world.random.uniform(0, 0.3), self._push)
            else:
                self.step += 1
                self.turn()

    def _check(self, pulled: Any) -> None:
        seen = pulled.rows["summed"].tobytes(), pulled.dense.tobytes()
        if seen != self.world.reference.after[self.step]:
            raise SimulationError(f"rank {self.rank}: its pull of step {self.step} sees another state")

    def _push(self) -> None:
        world, push = self.world, self.world.plan.of_rank[self.rank][self.step]
        manner = Manner(rate_of(self.step), rank=self.rank, contributors=world.plan.contributors(self.step))
        rows = {"summed": (push.keys, push.gradients)}
        name, moment = PushName(self.rank, self.step), Moment(self.step)
        self._pulls = False
        self._call = self.session.push(world.now_s, name, rows, push.dense, moment, None, manner)
        self.send()


class SyncWorld(World):
    """A world whose trainers train in step."""

    def __init__(self, seed: int, **planted: Any) -> None:
        super().__init__(seed, **planted)
        self.plan = PushPlan(self.random)
        self.reference = Reference(self.plan)
        self.trainers = [SyncTrainer(self, rank) for rank in range(len(self.plan.of_rank))]  # type: ignore[misc]

    def _begin(self) -> None:
        for trainer in self.trainers:
            self.after(self.random.uniform(0, 0.5), trainer.turn)
        self.after(self.random.uniform(0, 0.3), self.mover.turn)

    def publish(self, new_map: PartitionMap) -> None:
        super().publish(new_map)
        for server in self.servers:
            for shard in server.shards:
                shard.moves.forget_images(new_map.version)


def check_end(world: SyncWorld) -> None:
    if not all(trainer.idle for trainer in world.trainers):
        raise SimulationError("a trainer still waits, and nothing will happen any more")
    check_owners(world)
    for server in world.servers:
        for shard in server.shards:
            check_bits(world.reference, shard)
    counters = [shard.counters for server in world.servers for shard in server.shards]
    applied = sum(one.pushes_applied for one in counters), sum(one.updates_applied for one in counters)
    sent = [(trainer.session.pushes_sent, trainer.session.updates_sent) for trainer in world.trainers]
    if applied != tuple(map(sum, zip(*sent, strict=True))):
        raise SimulationError(f"sent {sent}, applied {applied}")


def check_bits(reference: Reference, shard: Shard) -> None:
    if shard.sync.held:
        raise SimulationError("pushes are held though all steps are applied")
    for partition in shard.stores["summed"].partitions().tolist():
        content = shard.stores["summed"].export_partition(partition)
        for key, row, sums in zip(content[0].tolist(), *content[1:], strict=True):
            if (
                row.tobytes() + sums.tobytes()
                != reference.rows[key].tobytes() + reference.state[key].tobytes()
            ):
                raise SimulationError(f"key {key:#x} has {row}, expected {reference.rows[key]}")
    assert shard.dense is not None
    for block, weights in shard.dense.weights.items():
        if weights.tobytes() != reference.dense[slice(*shard.dense.bounds(block))].tobytes():
            raise SimulationError(f"dense block {block} has other bits")


@pytest.fixture(autouse=True)
def in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = replace(
        simulated_processes.SETUP,
        tables={"tables": [TABLE.to_dict()]},
        dense_optimizer=ADAGRAD.to_dict(),
    )
    assert isinstance(setup, Setup)
    monkeypatch.setattr(simulated_processes, "SETUP", setup)
    monkeypatch.setattr(simulated_processes, "DIMS", {"summed": 2})
    monkeypatch.setattr(simulator, "check_end", check_end)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_every_step_has_the_bits_of_the_reference(first: int) -> None:
    worlds = [SyncWorld(seed).run() for seed in range(first, first + 50)]
    assert sum(world.map.version - 1 for world in worlds) > 300
    assert sum(asker.requests.resent for world in worlds for asker in world.askers) > 300


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_step_has_the_bits_of_the_reference_in_many_more_worlds() -> None:
    for seed in range(200, 8000):
        SyncWorld(seed).run()


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


class StaysBehind(Marks):
    """Marks do not move with their unit."""

    def export(self, unit: int) -> dict[str, Any]:
        return {"done_below": 0, "streams": []}


def shard_with(steps: type[SyncSteps]) -> Any:
    def make(*arguments: Any) -> Shard:
        shard = Shard(*arguments)
        shard.sync = steps(shard)
        return shard

    return make


def is_caught(seed: int, **planted: Any) -> bool:
    try:
        SyncWorld(seed, **planted).run()
    except (SimulationError, PslibError, KeyError):
        return True
    return False


@pytest.mark.parametrize(
    "planted",
    [
        {"make_shard": shard_with(WithoutWaiting)},
        {"make_shard": shard_with(KeepsWhatHasLeft)},
        {"make_shard": shard_with(SumsBackwards)},
        {"marks": StaysBehind},
    ],
    ids=["waits", "leaves", "order", "marks"],
)
def test_a_planted_bug_is_caught(planted: dict[str, Any]) -> None:
    assert any(is_caught(seed, **planted) for seed in range(60))
