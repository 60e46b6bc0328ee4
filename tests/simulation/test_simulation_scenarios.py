"""Simulated clusters to which one thing happens: what must come of it, in each of many worlds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pslib.coordinator.failure_detector import FailureDetector
from pslib.errors import MemoryLimitError
from pslib.shard.key_slices import Shares
from pslib.shard.serving import ShardPart, Steps
from pslib.shard.shard import Shard
from pslib.update_log import RollingLog
from pslib.wire.messages import Push
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.world import Planted, World

SEEDS = 12
LOST = "all trainers are lost before the work was done"


class AllTrainers(Mishaps):
    """All trainers die, perhaps twice, and come back."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._kill_all_trainers, 2)]


class AllTrainersForGood(Mishaps):
    """All trainers die, without successors."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._kill_all_trainers_for_good, 2)]


class SlowReaders(Mishaps):
    """Trainers read their answers late."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._read_slowly, 4)]


class TrimmedLogs(Mishaps):
    """Logs are to forget what was erased, while servers die."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        logged = self.world.config.durability != "memory"
        return [(self._trim_logs, 6), (self._kill_server, 1)] if logged else []


def worlds_of(kind: type[Mishaps], seeds: int = SEEDS) -> list[World]:
    """Worlds in which nothing else goes wrong than the weather of the network; all have ended."""
    return [World(seed, Planted(make_mishaps=kind)).run() for seed in range(seeds)]


def test_when_all_trainers_die_at_once_their_successors_do_the_rest() -> None:
    """In half the worlds no lease is taken over, in others up to four: a sum over a dozen is chance."""
    seeds = 3 * SEEDS
    worlds = worlds_of(AllTrainers, seeds)
    assert not [world.seed for world in worlds if world.coordinator.session.error]
    assert sum(trainer.generation > 1 for world in worlds for trainer in world.trainers) > seeds // 2
    assert sum(epoch > 0 for world in worlds for epoch in world.checks.epoch.values()) > seeds // 2


def test_when_the_last_trainers_are_not_started_again_the_run_ends_and_says_so() -> None:
    worlds = [world for world in worlds_of(AllTrainersForGood) if world.mishaps.kills]
    assert len(worlds) > SEEDS // 3
    for world in worlds:
        undone = [stream for stream in world.scripts if not world.history.is_done(stream)]
        assert bool(undone) <= (world.coordinator.session.error == LOST), world.seed


def test_a_slow_reader_holds_up_no_other_for_ever() -> None:
    worlds = worlds_of(SlowReaders)
    assert sum(world.mishaps.slow for world in worlds) > SEEDS
    assert not [world.seed for world in worlds if world.coordinator.session.error]


def test_a_coordinator_that_awaits_no_successors_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailureDetector, "trainers_over", lambda self, _now_s: self._members.trainers_over())
    for seed in range(10 * SEEDS):
        if World(seed, Planted(make_mishaps=AllTrainers)).run().coordinator.session.error == LOST:
            return
    pytest.fail("no world has ended too early")


def test_of_what_was_erased_nothing_is_left_in_a_log_that_was_trimmed() -> None:
    worlds = worlds_of(TrimmedLogs)
    assert sum(world.mishaps.trims for world in worlds) > 2 * SEEDS
    assert sum(world.checks.forgotten for world in worlds) > 5


def test_a_log_that_removes_nothing_when_it_is_trimmed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RollingLog, "trim", lambda _log, _below: None)
    with pytest.raises(SimulationError, match="its log was to forget"):
        list(map(run_trimmed, range(10 * SEEDS)))


def run_trimmed(seed: int) -> World:
    return World(seed, Planted(make_mishaps=TrimmedLogs)).run()


class FullShard(Shard):
    """Has no room for every third push, at first."""

    refused = 0

    def push_steps(self, message: Push, shares: Shares | None = None) -> Steps[ShardPart]:
        if (message.number + self.refused) % 3 == 0 and self.refused < 20:
            self.refused += 1
            raise MemoryLimitError("memory limit: planted")
        return super().push_steps(message, shares)


class Nothing(Mishaps):
    """No process is harmed but by the weather: messages are lost, doubled and late, and units move."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return []


def test_a_push_that_was_refused_for_want_of_room_counts_once_when_it_is_sent_again() -> None:
    for seed in range(SEEDS):
        world = World(seed, Planted(make_mishaps=Nothing, make_shard=FullShard)).run()
        assert sum(shard.refused for server in world.servers for shard in server.shards) > 0


def test_servers_count_as_applied_what_clients_count_as_sent_where_no_process_dies() -> None:
    worlds = [world for world in worlds_of(Nothing) if not world.former]  # else one was told to lose all
    assert len(worlds) > SEEDS // 2
    for world in worlds:
        counters = [shard.counters for server in world.servers for shard in server.shards]
        sessions = [trainer.session for trainer in world.trainers]
        assert sum(one.pushes_applied for one in counters) == sum(one.pushes_sent for one in sessions)
        assert sum(one.updates_applied for one in counters) == sum(one.updates_sent for one in sessions)
        assert world.map.version >> 16 > 0, "nothing has moved"
