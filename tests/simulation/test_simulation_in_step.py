"""Simulated runs with ``consistency: sync`` whose trainers and servers are killed, lost, or asked to go."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from pslib.config import ClusterConfig
from pslib.coordinator.jobs import JobRegistry
from pslib.coordinator.leases import Grant, RankedLeases
from pslib.coordinator.membership import Member
from pslib.coordinator.recovery import Recovery
from tests.simulation.cluster.in_step import InStep, RankedTrainer, RankedWorld
from tests.simulation.cluster.members import TIMING
from tests.simulation.cluster.runs import first_error
from tests.simulation.cluster.steps import ADAGRAD, TABLE
from tests.simulation.test_simulation_steps import use

SEEDS = 4
BUGS = 20
HANGS = "has waited 25|not over after"


@pytest.fixture(autouse=True)
def in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, TABLE, dense_optimizer=ADAGRAD.to_dict())


def worlds_of(
    kind: type[InStep], change: Callable[[ClusterConfig], ClusterConfig], seeds: int = SEEDS
) -> list[RankedWorld]:
    worlds = [RankedWorld(seed, make_mishaps=kind, change_config=change) for seed in range(seeds)]
    for world in worlds:
        world.run()
    return worlds


def error_with(kind: type[InStep], change: Callable[[ClusterConfig], ClusterConfig]) -> str:
    """Return the error of the first world in which anything is wrong."""
    return first_error(
        lambda seed: RankedWorld(seed, make_mishaps=kind, change_config=change).run(), range(BUGS)
    )


def as_it_is(config: ClusterConfig) -> ClusterConfig:
    return replace(config, recovery="log")


# --- a trainer is killed, and comes back ---


class TrainersDie(InStep):
    """Trainers get kill -9 in the middle of steps, and are started again at their places; so are servers."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        kinds: list[tuple[Callable[[], None], int]] = [(self._kill_in_step, 3), (self._cut, 2)]
        logged = self.world.config.durability != "memory"
        return [*kinds, (self._kill_server, 2), (self._kill_coordinator, 1)] if logged else kinds

    def _kill_in_step(self) -> None:
        """Kill one of the trainers; all steps wait for its successor."""
        if not (there := self._in_job()):
            self._later(self._kill_in_step)
            return
        trainer = self.world.random.choice(there)
        trainer.end("kill -9")
        self.kills += 1
        self._come_back(trainer)

    def _come_back(self, trainer: RankedTrainer) -> None:
        delay_s = self.world.random.uniform(0.1, 6.0)
        self.world.network.after(delay_s, lambda: self.world.restart_trainer(trainer))


def test_steps_wait_for_the_successor_of_a_trainer_and_have_the_bits_of_the_reference() -> None:
    worlds = worlds_of(TrainersDie, as_it_is)
    assert not [world.seed for world in worlds if world.coordinator.session.error]
    assert sum(trainer.generation > 1 for world in worlds for trainer in world.trainers) > SEEDS // 4


# --- a trainer is killed, without a successor ---


class OneIsGone(TrainersDie):
    """A trainer dies for good; nothing else goes wrong."""

    gone_s = 0.0
    whom = ""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        self.world.network.after(self.world.random.uniform(0.2, 3.0), self._kill_in_step)
        return []

    def _come_back(self, trainer: RankedTrainer) -> None:
        self.gone_s = self.world.network.now_s
        self.whom = "" if trainer.is_through else f"trainer {trainer.rank} (pid 1 on {trainer})"


def test_steps_wait_for_restart_s_and_the_run_ends_when_a_trainer_is_not_started_again() -> None:
    worlds = [world for world in worlds_of(OneIsGone, as_it_is) if world.mishaps.whom]
    assert len(worlds) > SEEDS // 4
    for world in worlds:
        who = world.mishaps.whom
        assert f"waited 12 s for {who}: nobody has started it again" in world.coordinator.session.error
        least_s = TIMING.restart_s + TIMING.silence_s
        assert least_s - 1.0 < world.network.now_s - world.mishaps.gone_s < least_s + 6.0, world.seed


# --- a trainer is asked to go ---


class OneIsAskedToGo(InStep):
    """A trainer gets SIGTERM in the middle of steps."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        self.world.network.after(self.world.random.uniform(0.2, 3.0), self._drain_in_step)
        return []

    def _drain_in_step(self) -> None:
        if not (there := self._in_job()):
            self._later(self._drain_in_step)
            return
        there = [trainer for trainer in there if not trainer.is_through]
        if there:
            self.world.random.choice(there).drain()
            self.drains += 1


def test_a_run_in_step_ends_in_words_when_a_trainer_is_asked_to_go() -> None:
    worlds = [world for world in worlds_of(OneIsAskedToGo, as_it_is) if world.mishaps.drains]
    ended = [world.coordinator.session.error for world in worlds]
    assert sum(bool(error) for error in ended) > SEEDS // 4
    for error in filter(None, ended):
        assert "has left before the job was done, and with consistency sync every step waits" in error


# --- a server loses what it knew ---


class OneServerIsLost(InStep):
    """A server dies with all that it knew."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        self.world.network.after(self.world.random.uniform(0.2, 3.0), self._lose_in_step)
        return []

    def _lose_in_step(self) -> None:
        if not self._in_job():
            self._later(self._lose_in_step)
        elif not self.world.all_are_through:
            self._lose_memory()


def partial_only(config: ClusterConfig) -> ClusterConfig:
    return replace(config, recovery="partial")


def test_a_run_in_step_ends_in_words_when_a_server_comes_back_without_what_it_knew() -> None:
    worlds = worlds_of(OneServerIsLost, partial_only)
    ended = [world.coordinator.session.error for world in worlds]
    assert sum(bool(error) for error in ended) > SEEDS // 4
    for error in filter(None, ended):
        assert (
            "comes back without what it knew, and with consistency sync no step can go on without it" in error
        )


# --- each of them can fail ---


def test_a_successor_that_skips_a_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    grant = RankedLeases._grant

    def skips(book: RankedLeases, index: int, holder: tuple[int, int]) -> Grant:
        given = grant(book, index, holder)
        return replace(given, first_batch=given.first_batch + (given.epoch > 0))

    monkeypatch.setattr(RankedLeases, "_grant", skips)
    assert "are acknowledged" in error_with(TrainersDie, as_it_is)


def test_a_run_in_step_that_awaits_no_trainer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobRegistry, "needs", lambda _registry, _rank: False)
    assert re.search(HANGS, error_with(OneIsGone, as_it_is))


def test_a_trainer_whose_leave_ends_no_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    free = JobRegistry.free_leases

    def goes_on(
        registry: JobRegistry, member: Member, why: str, below: int | None = None, **_fatal: bool
    ) -> int:
        return free(registry, member, why, below, fatal=False)

    monkeypatch.setattr(JobRegistry, "free_leases", goes_on)
    assert re.search(HANGS, error_with(OneIsAskedToGo, as_it_is))


def test_steps_that_go_on_without_what_a_server_knew_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_is_in_step", False)
    assert error_with(OneServerIsLost, partial_only)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [TrainersDie, OneIsGone, OneIsAskedToGo])
def test_all_of_them_in_many_more_worlds(kind: type[InStep]) -> None:
    worlds_of(kind, as_it_is, 300)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_servers_are_lost_in_many_more_worlds() -> None:
    worlds_of(OneServerIsLost, partial_only, 300)
