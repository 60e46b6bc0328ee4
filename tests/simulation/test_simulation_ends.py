"""Simulated clusters in which a process is gone for good, stands still, or has lost the end of its log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from pslib import clock
from pslib.client import failover
from pslib.config import ClusterConfig
from pslib.coordinator.failure_detector import FailureDetector
from pslib.coordinator.membership import Membership
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.members import TIMING
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.runs import caught, with_log, without_log, worlds_of
from tests.simulation.cluster.server import Server
from tests.simulation.cluster.trainer import Trainer
from tests.simulation.cluster.workload import Op
from tests.simulation.cluster.world import Planted, World

SEEDS = 4
GROWN_BYTES = 600
FOUND = (40, 49)
BUGS = 30


class Once(Mishaps):
    """One thing happens, as soon as all processes are there, and nothing else."""

    happened_s = 0.0
    whom = ""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        self.after_saves = 0
        if self.world.config.servers == 1:
            self.world.admin.rest()
        self.world.network.after(self.world.random.uniform(0.2, 2.0), self._look)
        return []

    def _look(self) -> None:
        world = self.world
        if all(one.session for one in world.trainers) and world.all_servers_live:
            self.happened_s = world.network.now_s
            self.happen()
        elif not world.coordinator.session.over:
            world.network.after(0.1, self._look)

    def happen(self) -> None:
        raise AssertionError

    def one_server(self) -> Server | None:
        """One that owns units."""
        alive = [one for one in self.world.servers if one.alive and one.rank in self.world.map.owners]
        return self.world.random.choice(alive) if alive else None


# --- a server that is not started again ---


class NobodyComes(Once):
    """A server is killed, and its launcher does not start it again."""

    def happen(self) -> None:
        if server := self.one_server():
            self.whom = f"server {server.rank} (pid 1 on {server})"
            self.world.abandoned.add(server.name)
            server.end("kill -9")


def that_come_back(config: ClusterConfig) -> ClusterConfig:
    """With a log; or without one, and partial."""
    return replace(config, recovery="partial" if config.durability == "memory" else config.recovery)


NOBODY = Planted(make_mishaps=NobodyComes, change_config=that_come_back)


def missed(worlds: list[World]) -> list[World]:
    return [world for world in worlds if world.mishaps.whom]  # type: ignore[attr-defined]


def test_all_wait_for_a_server_that_is_not_started_again_and_then_end() -> None:
    worlds = missed(worlds_of(NOBODY, SEEDS))
    assert len(worlds) > SEEDS // 4
    least_s = TIMING.silence_s + TIMING.restart_s
    for world in worlds:
        error = world.coordinator.session.error
        assert f"waited 12 s for {world.mishaps.whom}: nobody has started it again" in error
        ends = {member.ended for member in (*world.servers, *world.trainers)} - {"kill -9"}
        assert all("waited 12 s for server" in why for why in ends), ends
        took_s = world.network.now_s - world.mishaps.happened_s
        assert least_s - 1.0 < took_s < least_s + 6.0, world.seed


def test_a_run_that_awaits_a_server_for_ever_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailureDetector, "_await", lambda *_about: None)
    assert "has waited 25" in caught(NOBODY, BUGS)


# --- a server that is paused, and has no log ---


class OneServerIsPaused(Once):
    """A server is stopped, or can't reach the coordinator, for longer than it takes to be lost."""

    def happen(self) -> None:
        server, world = self.one_server(), self.world
        if server is None:
            return
        self.whom = f"server {server.rank} at {server.address} (pid 1 on {server})"
        seconds = world.random.uniform(1.5, 3.0) * TIMING.silence_s
        if world.random.random() < 0.5:
            server.stop(seconds)
        else:
            world.network.cut(server.name, world.coordinator.name, seconds)


PAUSED = Planted(make_mishaps=OneServerIsPaused, change_config=without_log)


def test_without_a_log_a_run_whose_server_is_paused_ends_and_names_it() -> None:
    worlds = missed(worlds_of(PAUSED, SEEDS))
    assert len(worlds) > SEEDS // 4
    for world in worlds:
        error = world.coordinator.session.error
        assert f"{world.mishaps.whom} has been silent for 2.5 s and counts as lost" in error
        assert {one.ended.startswith("fails: ") for one in world.trainers} == {True}
        assert world.network.now_s - world.mishaps.happened_s < 4.0 * TIMING.silence_s, world.seed


def test_a_run_that_goes_on_without_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coordinator takes a server without a log for one that may come back."""
    monkeypatch.setattr(Membership, "may_come_back", lambda _members, _role: True)
    worlds = (World(seed, PAUSED).run() for seed in range(BUGS))
    assert any(
        world.mishaps.whom and "counts as lost" not in world.coordinator.session.error for world in worlds
    )


# --- a trainer is asked to go, and its server answers nothing ---


class LeavesInTime(Once):
    """A server stands still, and a trainer that waits for it is asked to go: its time is over before."""

    def happen(self) -> None:
        server, world = self.one_server(), self.world
        trainers = [one for one in world.trainers if one.alive]
        if server is None or len(trainers) < 2:
            return
        self.whom = "a trainer"
        logged = world.config.durability != "memory"
        server.stop(world.random.uniform(0.5, 1.5 if logged else 0.6) * TIMING.silence_s)
        world.network.after(0.3, partial(world.random.choice(trainers).drain, world.random.uniform(0.2, 0.6)))


class SaysTooMuch(Trainer):
    """Counts what it has sent as acknowledged."""

    def positions(self) -> dict[int, int]:
        return {stream: held.next for stream, held in self._held.items() if stream < 1 << 63}


def never_partial(config: ClusterConfig) -> ClusterConfig:
    return replace(config, recovery="log")


LEAVES = Planted(make_mishaps=LeavesInTime, change_config=never_partial)


def test_what_a_trainer_leaves_unacknowledged_is_pushed_by_others_and_counts_once() -> None:
    worlds = missed(worlds_of(LEAVES, SEEDS))
    assert sum(bool(trainer.leaves_behind) for world in worlds for trainer in world.trainers) > SEEDS // 4
    for world in worlds:
        assert not world.coordinator.session.error
        left = [stream for stream in world.scripts if not world.history.is_done(stream)]
        assert not left, world.seed


def test_a_trainer_that_leaves_and_says_too_much_is_caught() -> None:
    assert "is not acknowledged" in caught(replace(LEAVES, make_trainer=SaysTooMuch), BUGS)


# --- a log that has lost its end ---


class EndsAreLost(Once):
    """A server is killed, and the last bytes of its log are gone, whatever was synced."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        self.world.admin.rest()  # units that move leave records at both ends
        return super()._kinds()

    def happen(self) -> None:
        if server := self.one_server():
            self._wait(server, {place: self._end_of(server, place) for place in self._folders(server)})

    def _folders(self, server: Server) -> list[str]:
        folders = self.world.disk(server.name).folders
        return [place for place, files in folders.items() if "/shard-" in place and files]

    def _end_of(self, server: Server, place: str) -> tuple[str, int]:
        files = self.world.disk(server.name).folders[place]
        newest = max(name for name in files if name.endswith(".log"))
        return newest, len(files[newest].content)

    def _wait(self, server: Server, ends: dict[str, tuple[str, int]]) -> None:
        """Until the newest segment of a log has grown by a few records; another one is another end."""
        for place, (before, least) in list(ends.items()):
            name, size = self._end_of(server, place)
            if name != before:
                ends[place] = name, size
            elif size > least + GROWN_BYTES and server.alive and not server.leaving:
                self._lose(server, place, self.world.random.randint(least, size - GROWN_BYTES // 2))
                return
        if server.alive and not self.world.coordinator.session.over:
            self.world.network.after(0.05, partial(self._wait, server, ends))

    def _lose(self, server: Server, place: str, left: int) -> None:
        """Kill a server and cut its log; it keeps what it held when all had joined, and some records more."""
        self.whom = server.name
        server.end("kill -9, and the end of its log is gone")
        self.world.torn.add(server.name)
        one = self.world.disk(server.name).folders[place][self._end_of(server, place)[0]]
        del one.content[left:]
        one.safe = bytes(one.content)


class Remembers(Trainer):
    """Notes what it was told."""

    def _applied(self, op: Op, number: int) -> None:
        self.told: set[Op] = getattr(self, "told", set()) | {op}
        super()._applied(op, number)


def unnoticed(world: World) -> list[Op]:
    """Acknowledged pushes that are gone unreported, though a trainer told of them was there long after."""
    told = [one for one in world.trainers if not world.coordinator.session.pushes_missing]
    return [
        op
        for since_s, op in world.checks.missed
        if any(op in getattr(one, "told", ()) and one.ended_s > since_s + 1.0 for one in told)
    ]


def torn(recovery: str) -> Planted:
    def change(config: ClusterConfig) -> ClusterConfig:
        return replace(with_log(config), recovery=recovery)

    return Planted(make_mishaps=EndsAreLost, change_config=change, make_trainer=Remembers)


@pytest.mark.parametrize("recovery", ["log", "partial"])
def test_a_log_that_has_lost_its_end_is_noticed_and_only_partial_goes_on(recovery: str) -> None:
    worlds = missed(worlds_of(torn(recovery), SEEDS))
    assert not [world.seed for world in worlds if unnoticed(world)]
    noticed = [world for world in worlds if world.coordinator.session.pushes_missing]
    assert len(noticed) > SEEDS // 4
    for world in noticed:
        error = world.coordinator.session.error
        assert ("its log has lost its end" in error) == (recovery == "log"), world.seed
        assert (recovery == "partial") <= (error == ""), error


def test_a_question_that_comes_late_and_a_log_of_one_of_two_shards_are_answered_right() -> None:
    """Seeds that have found that floors of later pushes, and units of one shard alone, hid a loss."""
    worlds = [World(seed, torn("log")).run() for seed in FOUND]
    assert all(world.coordinator.session.pushes_missing for world in worlds)


def test_a_trainer_that_leaves_has_told_what_a_server_has_lost() -> None:
    """A seed in which the report was lost on its way, and the trainer that would have resent it had left."""
    world = World(5066, torn("partial")).run()
    assert world.coordinator.session.pushes_missing == 2
    assert not unnoticed(world)


def test_clients_that_ask_no_server_what_it_has_lost_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover.Failover, "_report_when_known", lambda *_about: None)
    assert any(unnoticed(World(seed, torn("log")).run()) for seed in range(BUGS))


# --- all processes stand still ---


class AllAreStopped(Once):
    """All processes are stopped at once, for longer than any limit, and goes on; some a moment later."""

    late_s = 0.3

    def happen(self) -> None:
        world = self.world
        self.whom = "everybody"
        seconds = world.random.uniform(1.5, 3.0) * (TIMING.silence_s + TIMING.restart_s)
        for process in world.processes:
            process.stop(seconds + world.random.uniform(0.0, self.late_s))


class OneProcessIsStopped(AllAreStopped):
    """A script alone: coordinator, server and trainer go on at one instant."""

    late_s = 0.0


def alone(config: ClusterConfig) -> ClusterConfig:
    return replace(without_log(config), servers=1, trainers=1, restarts=0)


STOPPED = Planted(make_mishaps=AllAreStopped)
ALONE = Planted(make_mishaps=OneProcessIsStopped, change_config=alone)


def lost(world: World) -> list[str]:
    """Return all reports of a loss."""
    return [event for event in world.coordinator.session.events if "lost" in event]


@pytest.mark.parametrize("planted", [STOPPED, ALONE], ids=["run", "script"])
def test_a_run_that_is_stopped_as_a_whole_goes_on_and_no_member_is_lost(planted: Planted) -> None:
    worlds = missed(worlds_of(planted, SEEDS))
    assert len(worlds) > SEEDS // 4
    assert not [(world.seed, lost(world)) for world in worlds if lost(world)]
    assert not [world.seed for world in worlds if world.coordinator.session.error]


@pytest.mark.parametrize("planted", [STOPPED, ALONE], ids=["run", "script"])
def test_a_clock_that_counts_while_a_process_stands_still_is_caught(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "STALL_S", 1e9)
    for seed in range(BUGS):
        try:
            if lost(World(seed, planted).run()):
                return
        except SimulationError:
            return
    pytest.fail("no member was lost")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "planted",
    [NOBODY, PAUSED, LEAVES, torn("log"), torn("partial"), STOPPED, ALONE],
    ids=["nobody", "paused", "leaves", "torn", "torn-partial", "stopped", "alone"],
)
def test_all_of_them_in_many_more_worlds(planted: Planted) -> None:
    worlds = worlds_of(planted, 200)
    assert not [world.seed for world in worlds if unnoticed(world)]
