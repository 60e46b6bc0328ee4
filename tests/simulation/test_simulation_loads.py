"""Simulated clusters that load together: no load of a trainer that fell asleep undoes what others train."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from pslib.coordinator.leases import stream_of
from pslib.errors import PslibError
from pslib.server import requests
from pslib.shard.shard import Shard
from pslib.wire.fields import Message
from pslib.wire.messages import CLIENT_STREAMS, CheckLoad, Lease, Load, NextLease, OpenJob
from tests.simulation.cluster.history import History, SimulationError
from tests.simulation.cluster.members import COORDINATOR, TIMING
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.runs import with_log, without_log
from tests.simulation.cluster.trainer import Held, Trainer
from tests.simulation.cluster.workload import Script, lease_scripts
from tests.simulation.cluster.world import PARTITION_BITS, Planted, World

SEEDS = 25
LOAD_JOB = 1
PLACE = "as it was before the load"


class LoadWorld(World):
    """Trains, loads what it has just trained, and trains: nothing changes, if the load is not late."""

    asleep = refused = left = 0
    """Trainers that fell asleep with a load that was theirs; those that were refused, or told, later; and how
    often a server left in the middle of a load."""

    def _make_scripts(self) -> None:
        choice = self.random
        jobs = [choice.randint(1, 3), 1, choice.randint(3, 6)]
        self.windows = [np.arange(leases, dtype=np.uint32) // 2 for leases in jobs]
        leases = lease_scripts(choice, jobs, self.restless, PARTITION_BITS)
        nothing = {stream_of(LOAD_JOB, 0): Script(stream_of(LOAD_JOB, 0), ())}
        self.scripts = {script.stream: script for script in leases} | nothing
        self.history = History(list(self.scripts.values()), PARTITION_BITS)


class SleepyLoader(Trainer):
    """Works on leases, and on that of the load; stopped when the coordinator has said that it is its own."""

    world: LoadWorld

    def __init__(self, world: World, name: str, _own: Script | None, *place: int) -> None:
        super().__init__(world, name, None, *place)
        self._loaded: set[int] = set()
        self._looks = 0

    def _open(self) -> None:
        if self.job != LOAD_JOB:
            super()._open()
            return
        about = (self.rank, self.job, "load", 7, {"path": PLACE}, self.world.windows[self.job])
        self.ask(COORDINATOR, OpenJob(*about), self._opened)

    def _lease(self, lease: Lease) -> None:
        super()._lease(lease)
        if lease.state == "held" and lease.stream >> 32 == LOAD_JOB:
            self._look(lease)

    def _work_on(self, held: Held) -> None:
        if held.script.stream >> 32 != LOAD_JOB or held.epoch in self._loaded:
            super()._work_on(held)

    def _look(self, lease: Lease) -> None:
        about = {"stream": lease.stream, "epoch": lease.epoch}
        self._looks += 1
        stem, again = f"{self}-{lease.epoch}-{self._looks}", partial(self._refused, lease)
        load = Load(PLACE, stem, **about)
        self._ask_all(CheckLoad(PLACE, stem, **about), partial(self._confirm, load, again), again)

    def _ask_all(
        self, message: Message, then: Callable[[], None], otherwise: Callable[[PslibError], None]
    ) -> None:
        """Ask every server, as clients do; then go on."""
        assert self.session is not None
        servers = [address for address in self.session.map.addresses if address]
        left = set(servers)

        def answered(server: str, _answer: Message) -> None:
            left.discard(server)
            if not left:
                then()

        for server in servers:
            self.ask(server, message, partial(answered, server), None, otherwise)

    def _refused(self, lease: Lease, error: PslibError) -> None:
        if "has left the cluster" in str(error):  # as it says, ask again: those that are there
            self.world.left += 1
            self._look(lease)
            return
        self.world.refused += 1
        self.failed(error)

    def _confirm(self, load: Load, again: Callable[[PslibError], None]) -> None:
        mine = np.array([stream for stream in self._held if stream < CLIENT_STREAMS], np.uint64)
        message = NextLease(self.rank, self.member.incarnation, LOAD_JOB, mine)
        self.ask(COORDINATOR, message, partial(self._confirmed, load, again))

    def _confirmed(self, load: Load, again: Callable[[PslibError], None], _lease: Lease) -> None:
        if load.epoch == 0 and self.world.random.random() < 0.8:
            self.world.asleep += 1
            self.stop(self.world.random.uniform(0.9, 2.5) * TIMING.silence_s)
        self.after(0.0, partial(self._load, load, again))

    def _load(self, load: Load, again: Callable[[PslibError], None]) -> None:
        if not self.leaving:
            self._ask_all(load, partial(self._loaded.add, load.epoch), again)


class Weather(Mishaps):
    """Further mishaps of clusters that load."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        kinds: list[tuple[Callable[[], None], int]] = [(self._cut, 2), (self._stop, 1)]
        kinds += [(self._forget_the_coordinator, 1), (self._kill_trainer, 1), (self._ask_server_to_leave, 1)]
        if self.world.config.durability != "memory":
            kinds += [(self._kill_server, 3), (self._kill_coordinator, 1)]
        return kinds


def run(seed: int, change_config: Any) -> LoadWorld:
    planted = Planted(make_mishaps=Weather, make_trainer=SleepyLoader, change_config=change_config)
    world = LoadWorld(seed, planted)
    world.run()
    return world


@pytest.mark.parametrize("change_config", [with_log, without_log])
def test_no_push_is_lost_to_a_load_of_a_trainer_that_slept(change_config: Any) -> None:
    worlds = [run(seed, change_config) for seed in range(SEEDS)]
    assert sum(world.asleep for world in worlds) > SEEDS // 2
    assert sum(world.refused for world in worlds) > SEEDS // 8
    assert sum(not world.coordinator.session.error for world in worlds) > SEEDS // 2  # else none is left


@pytest.mark.parametrize("change_config", [with_log, without_log])
def test_servers_that_know_no_lease_of_a_load_are_caught(
    monkeypatch: pytest.MonkeyPatch, change_config: Any
) -> None:
    run_load = requests._run_load

    def of_no_lease(shard: Shard, message: Any, loads: Any) -> Any:
        return run_load(shard, type(message)(message.path, message.stem), loads)

    monkeypatch.setattr(requests, "_run_load", of_no_lease)
    with pytest.raises(SimulationError, match="expected"):
        list(map(partial(run, change_config=change_config), range(SEEDS)))
