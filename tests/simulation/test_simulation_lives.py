"""Simulated runs that end as a whole, and those that go on without a checkpoint or are taken back to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

import pytest

from launch.supervisor.graceful_stop import COORDINATOR_S, SERVERS_S, GracefulStop
from launch.supervisor.outcome import Verdict
from launch.supervisor.run_spec import Task
from pslib.coordinator.leases import LeaseBook
from pslib.coordinator.rebalance import Rebalance
from pslib.errors import PreemptedError
from pslib.process.shutdown import HARD_S
from tests.simulation.cluster.checkpoints import Checkpoints
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.launcher import DRAIN_S, Leaving
from tests.simulation.cluster.members import TIMING
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.runs import caught, with_log, with_rollback, without_log, worlds_of
from tests.simulation.cluster.world import Planted, World

SEEDS = 8


# --- the launcher ends, and the run goes on from its logs ---


class LaunchersEnd(Mishaps):
    """All processes end with their launcher, twice in some worlds, among all that else happens."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [*super()._kinds(), (self._end_launcher, 2)]


class LaunchersAreAskedToLeave(Mishaps):
    """The launcher gets SIGTERM, at most twice, among all that else happens but servers that are lost."""

    def begin(self) -> None:
        self.leavings: list[Leaving] = []
        super().begin()

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._cut, 2), (self._stop, 1), (self._kill_trainer, 2), (self._ask_launcher_to_leave, 2)]

    def _ask_launcher_to_leave(self) -> None:
        if leaving := self.world.lives.ask_all_to_leave():
            self.leavings.append(leaving)


class LaunchersEndWithMoreServers(Mishaps):
    """There is one more server than at first, and the launcher ends as soon as it owns anything."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._grow, 3)]

    def _grow(self) -> None:
        world = self.world
        there = world.all_servers_live
        if there and len(world.servers) == world.config.servers:
            world.start_server()
        elif there and world.config.servers in world.map.owners:
            self._end_launcher()
        if not world.lives.down and not world.lives.number:
            world.network.after(0.1, self._grow)


def test_a_run_whose_launcher_ends_goes_on_from_its_logs() -> None:
    worlds = worlds_of(Planted(change_config=with_log, make_mishaps=LaunchersEnd), SEEDS)
    assert sum(world.lives.resumed for world in worlds) > SEEDS // 2
    assert sum(bool(world.coordinator.session.error) for world in worlds) <= SEEDS // 4


ASKED = Planted(change_config=with_log, make_mishaps=LaunchersAreAskedToLeave)
LEAVE_S = DRAIN_S + HARD_S + SERVERS_S + COORDINATOR_S


def leave_all(seed: int) -> World:
    """One world; raises if a process had to be killed, or something is left undone."""
    world = World(seed, ASKED).run()
    for leaving in world.mishaps.leavings:  # type: ignore[attr-defined]
        if leaving.verdict.exit_code != 75 or leaving.took_s > LEAVE_S + 1.0:
            raise SimulationError(f"seed {seed}: {leaving.verdict} after {leaving.took_s:.1f} s")
        if leaving.killed and not leaving.waited_for:
            raise SimulationError(f"seed {seed}: {leaving.killed} had not left")
    undone = [stream for stream in world.scripts if not world.history.is_done(stream)]
    if undone and not (world.coordinator.session.error or world.mishaps.drains):
        raise SimulationError(f"seed {seed}: leases {undone} are not done")
    return world


def test_all_leave_in_order_when_their_launcher_is_asked_to_and_the_run_goes_on() -> None:
    worlds = [leave_all(seed) for seed in range(SEEDS // 2)]
    leavings = [one for world in worlds for one in world.mishaps.leavings]  # type: ignore[attr-defined]
    assert sum(not leaving.killed for leaving in leavings) > 1
    assert sum(world.lives.resumed for world in worlds) == len(leavings)


def test_a_launcher_that_waits_for_no_process_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = GracefulStop.turn

    def asks_and_goes(draining: GracefulStop, exits: Mapping[Task, int | None]) -> Verdict:
        turn(draining, exits)
        return Verdict(PreemptedError.exit_code)

    monkeypatch.setattr(GracefulStop, "turn", asks_and_goes)
    with pytest.raises(SimulationError, match="had not left"):
        list(map(leave_all, range(10 * SEEDS)))


def test_servers_that_came_later_are_started_again_with_the_run() -> None:
    worlds = worlds_of(Planted(change_config=with_log, make_mishaps=LaunchersEndWithMoreServers), SEEDS)
    assert sum(world.lives.resumed for world in worlds) > 2
    assert not [world.seed for world in worlds if world.coordinator.session.error]


def test_a_coordinator_that_asks_for_new_servers_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_new(moves: Rebalance) -> list[int]:
        had = {server.rank for server in moves.members.servers}
        return list(islice((rank for rank in range(99) if rank not in had), moves.awaited))

    monkeypatch.setattr(Rebalance, "awaited_ranks", only_new)
    planted = Planted(change_config=with_log, make_mishaps=LaunchersEndWithMoreServers)
    ended = (World(seed, planted).run().coordinator.session.error for seed in range(10 * SEEDS))
    assert any("nobody has started it again" in error for error in ended)


# --- the coordinator ends, and has no journal ---


class NoCoordinator(Mishaps):
    """The coordinator ends once all processes are there."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._end_the_coordinator, 3)]

    def _end_the_coordinator(self) -> None:
        world = self.world
        if all(trainer.session for trainer in world.trainers) and world.all_servers_live:
            world.coordinator.end("kill -9")
            self.ended_s = self.ended_s or world.network.now_s
        elif world.coordinator.alive:
            world.network.after(0.1, self._end_the_coordinator)

    ended_s = 0.0


def test_without_its_coordinator_and_a_journal_a_run_ends_and_names_it() -> None:
    planted = Planted(change_config=without_log, make_mishaps=NoCoordinator)
    worlds = [world for world in worlds_of(planted, SEEDS) if world.lives.abandoned]
    assert len(worlds) > SEEDS // 3
    for world in worlds:
        ends = {member.ended for member in (*world.servers, *world.trainers)} - {"has left"}
        assert all("coordinator.0" in why for why in ends), ends
        late_s = world.network.now_s - world.mishaps.ended_s  # type: ignore[attr-defined]
        assert late_s < 4 * TIMING.silence_s, world.seed


# --- recovery: rollback ---


class PeersAreLost(Mishaps):
    """A server or the coordinator dies for good, soon after a save; trainers die, too."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        self.world.admin.left = 1  # no cut begins while units move
        return [(self._kill_trainer, 2), (self._cut, 2)]

    def saved(self) -> None:
        if self.after_saves:
            self.after_saves -= 1
            self.world.network.after(self.world.random.uniform(0.0, 1.0), self._kill_a_peer)

    def _kill_a_peer(self) -> None:
        (self._kill_server if self.world.random.random() < 0.7 else self._kill_coordinator)()


MOVING = 19
"""A seed in which a new server dies while its first units are on their way to it, for good."""
BACK = Planted(change_config=with_rollback, make_mishaps=PeersAreLost, save_every_s=0.3)


def test_after_a_rollback_everything_counts_once_from_the_last_checkpoint_on() -> None:
    worlds = [*worlds_of(BACK, SEEDS), World(MOVING, BACK).run()]
    assert sum(world.lives.rolled_back for world in worlds) > SEEDS // 4
    assert sum(bool(world.lives.resume) for world in worlds) > 2, "lives that began at a checkpoint"


class BeginsAtTheBeginning(LeaseBook):
    """A run that was rolled back does all again, also what its checkpoint holds."""

    def restore(self, table: object) -> None:
        return


def test_leases_that_begin_again_after_a_rollback_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseBook, "restore", BeginsAtTheBeginning.restore)
    assert caught(BACK, 10 * SEEDS)


def test_a_checkpoint_that_is_not_loaded_after_a_rollback_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoints, "load", lambda *_about: None)
    assert "expected" in caught(BACK, 10 * SEEDS)


# --- a full disk during a checkpoint ---


class FullDisks(Mishaps):
    """There is no space for a checkpoint, once or more often."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        self.world.admin.left = 1  # no cut begins while units move
        return [(self._fill_disk_of_checkpoints, 3), (self._kill_trainer, 1)]


def test_a_checkpoint_that_finds_no_space_is_given_up_and_a_later_one_is_made() -> None:
    worlds = worlds_of(Planted(make_mishaps=FullDisks, save_every_s=0.3), SEEDS)
    assert not [world.seed for world in worlds if world.coordinator.session.error]
    refused = [world for world in worlds if world.checkpoints.refused]
    assert len(refused) > SEEDS // 4
    told = [[event for event in world.coordinator.session.events if "No space" in event] for world in refused]
    assert all(told), "each of them is an event"
    assert any(world.checkpoints.saved_after_refusal for world in refused)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "planted",
    [
        Planted(change_config=with_log, make_mishaps=LaunchersEnd),
        Planted(change_config=with_log, make_mishaps=LaunchersEndWithMoreServers),
        Planted(change_config=without_log, make_mishaps=NoCoordinator),
        BACK,
        Planted(make_mishaps=FullDisks, save_every_s=0.3),
    ],
    ids=["launcher", "grown", "coordinator", "rollback", "disk"],
)
def test_all_of_them_in_many_more_worlds(planted: Planted) -> None:
    assert worlds_of(planted, 300)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_leave_in_order_in_many_more_worlds() -> None:
    for seed in range(SEEDS // 2, 300):
        leave_all(seed)
