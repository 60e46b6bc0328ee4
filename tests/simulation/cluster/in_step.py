"""Trainers in step whose leases the coordinator gives out by rank: killed, asked to go, and begun again."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pslib.client.calls import Manner, Moment, PushName
from pslib.client.session import ClientSession
from pslib.coordinator.leases import stream_of
from pslib.shard.shard import Shard
from pslib.wire.messages import Erase, Lease, OpenJob, Push
from tests.simulation.cluster.checks import Checks
from tests.simulation.cluster.history import History, SimulationError
from tests.simulation.cluster.members import COORDINATOR
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.server import Server
from tests.simulation.cluster.steps import KEYS, PushPlan, Reference, check_bits, rate_of
from tests.simulation.cluster.trainer import Held, Trainer
from tests.simulation.cluster.workload import Script
from tests.simulation.cluster.world import PARTITION_BITS, Planted, World

__all__ = ["InStep", "RankedTrainer", "RankedWorld"]

TABLE_OF_STEPS = "summed"


class RankedTrainer(Trainer):
    """Has one lease, that of its rank; its batches are the steps in which it has a part."""

    world: RankedWorld
    step = 0
    given = False
    """True once it has had its lease."""
    _busy = False

    def __init__(self, world: World, name: str, own: Script | None, *place: int) -> None:
        super().__init__(world, name, None, *place)

    def end(self, why: str) -> None:
        """One that fails alone, as the coordinator has not heard it for a while, is started again."""
        lived = self.alive
        super().end(why)
        if lived and why.startswith("fails"):
            self.world.network.after(0.5, partial(self.world.restart_trainer, self))

    @property
    def is_through(self) -> bool:
        """True if all its steps are applied everywhere."""
        return self.step == len(self.world.plan.of_rank[self.rank])

    @property
    def done(self) -> bool:
        return self.job == 1 and not (self._held or self._busy)

    def _open(self) -> None:
        windows = np.zeros(self.world.config.trainers, np.uint32)
        self.ask(COORDINATOR, OpenJob(self.rank, 0, "fit", 7, {}, windows, True), self._opened)

    def _lease(self, lease: Lease) -> None:
        if lease.state != "held":
            super()._lease(lease)
            return
        assert self.session is not None
        self._asking = False
        if lease.first_batch > self.world.acknowledged[self.rank]:
            raise SimulationError(
                f"rank {self.rank} goes on at step {lease.first_batch}: only "
                f"{self.world.acknowledged[self.rank]} are acknowledged"
            )
        self._held[lease.stream] = Held(Script(lease.stream, ()), lease.first_batch, lease.epoch)
        self.step, self.given = lease.first_batch, True
        self.session.open_stream(lease.stream, lease.first_batch)

    @property
    def _may_go(self) -> bool:
        return not self._busy and not any(held.ending for held in self._held.values())

    def _begin(self) -> None:
        if self._busy:
            return
        if not self._held:
            if self.working and not self._asking:
                self._ask_lease()
            return
        (held,) = self._held.values()
        if not self.is_through:
            self._busy = True
            self._call(self._pull_step, partial(self._seen, held))
        elif not held.ending:
            self._end_lease(held)

    def _pull_step(self, session: ClientSession, now_s: float) -> int:
        return session.pull(now_s, {TABLE_OF_STEPS: KEYS}, True, Moment(self.step))

    def _seen(self, held: Held, number: int) -> None:
        """Check that a step pulls the same in every run, unless a predecessor has begun it already."""
        assert self.session is not None
        pulled = self.session.pulled(number)
        seen = pulled.rows[TABLE_OF_STEPS].tobytes(), pulled.dense.tobytes()
        is_first = self.step >= self.world.begun[self.rank]
        if is_first and seen != self.world.reference.after[self.step]:
            raise SimulationError(f"rank {self.rank}: its pull of step {self.step} sees another state")
        if self.draining:
            self._busy = False
            return
        self.world.begun[self.rank] = max(self.world.begun[self.rank], self.step + 1)
        self._call(partial(self._push_step, held), self._taken)

    def _push_step(self, held: Held, session: ClientSession, now_s: float) -> int:
        plan, step = self.world.plan, self.step
        push = plan.of_rank[self.rank][step]
        manner = Manner(rate_of(step), rank=self.rank, contributors=plan.contributors(step))
        name = PushName(held.script.stream, step, held.epoch)
        rows = {TABLE_OF_STEPS: (push.keys, push.gradients)}
        return session.push(now_s, name, rows, push.dense, Moment(step), None, manner)

    def _taken(self, _number: int) -> None:
        self.step, self._busy = self.step + 1, False
        self.world.acknowledged[self.rank] = max(self.world.acknowledged[self.rank], self.step)


class RankedChecks(Checks):
    """At the end all rows have the bits of the reference after one step that is still possible."""

    world: RankedWorld

    def _check_block(self, shard: Shard, block: int) -> None:
        return

    def _check_fence(self, server: Server, shard: Shard, message: Push | Erase) -> None:
        """Both copies of a push that two holders of a lease have sent are answered when its step is taken."""

    def came_back(self, server: Server) -> None:
        self.returned += 1

    def check_end(self) -> None:
        world = self.world
        self.check_owners()
        if not world.coordinator.session.error:
            undone = [
                rank for rank, plan in enumerate(world.plan.of_rank) if world.acknowledged[rank] < len(plan)
            ]
            if undone:
                raise SimulationError(f"all is over, and ranks {undone} have not made all their steps")
        for shard in () if self.returned else world.live_shards():  # what a lost server knew is nowhere
            if world.coordinator.session.error:
                self._check_unfinished(shard)
            elif shard.owned or shard.stores:  # else it came back when it had nothing to own any more
                check_bits(world.reference, shard)

    def _check_unfinished(self, shard: Shard) -> None:
        """Nothing that was acknowledged is missing, and no step is there in part."""
        least, most = max(self.world.acknowledged), max(self.world.begun)
        for place, key in enumerate(KEYS.tolist()):
            possible = {
                np.frombuffer(rows, np.float32).reshape(-1, 2)[place].tobytes()
                for rows, _dense in self.world.reference.after[least : most + 1]
            }
            for _key, row in self._rows(shard, TABLE_OF_STEPS, *_own(shard, key)):
                if np.array(row, np.float32).tobytes() not in possible:
                    raise SimulationError(f"key {key:#x} has {row}, which no step from {least} on leaves")


def _own(shard: Shard, key: int) -> tuple[Any, Any]:
    keys = np.array([key], np.uint64)
    return shard.own_keys(keys), keys


class InStep(Mishaps):
    """Mishaps of trainers in step; none is harmed before all of them have their leases."""

    def _in_job(self) -> list[RankedTrainer]:
        world = self.world
        assert isinstance(world, RankedWorld)
        trainers = [one for one in world.trainers if isinstance(one, RankedTrainer)]
        world.all_have_begun = world.all_have_begun or all(one.given for one in trainers)
        return [one for one in trainers if one.alive and one.session] if world.all_have_begun else []

    def _later(self, again: Any) -> None:
        if not self.world.coordinator.session.over:
            self.world.network.after(0.05, again)


class RankedWorld(World):
    """A job in step; everything else as in every world."""

    def __init__(self, seed: int, **planted: Any) -> None:
        super().__init__(seed, Planted(**{"make_trainer": RankedTrainer} | planted))
        self.restless = [0, 1, 2, self.config.partitions]
        self.checks.__class__ = RankedChecks
        self.plan = PushPlan(self.random)
        while len(self.plan.of_rank) != self.config.trainers or not any(self.plan.of_rank):
            self.plan = PushPlan(self.random)
        self.reference = Reference(self.plan)
        self.windows, self.details = [np.zeros(self.config.trainers, np.uint32)], {}
        leases = [Script(stream_of(0, rank), ()) for rank in range(self.config.trainers)]
        self.scripts = {script.stream: script for script in leases}
        self.history = History(leases, PARTITION_BITS)
        self.acknowledged = [0] * self.config.trainers
        """The number of steps that any trainer has been told are applied, by rank."""
        self.begun = [0] * self.config.trainers
        self.all_have_begun = False

    @property
    def all_are_through(self) -> bool:
        """True if no step is left to be made."""
        return all(made == len(plan) for made, plan in zip(self.acknowledged, self.plan.of_rank, strict=True))
