"""Ranks of processes that no launcher counts: pods that a scheduler places anew, at times two at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pslib.config import NEXT_GENERATION, ClusterConfig
from pslib.coordinator.session import CoordinatorSession
from pslib.wire.messages import Failure, Leave, Register
from tests.support.simulated.one_coordinator import Cluster

CONFIG = ClusterConfig(servers=2, trainers=2, durability="log", restarts=3)
SERVERS = (("server", 0), ("server", 1))
DONE = Failure("work-done", "all work of this cluster is done; start a new one for other work")


class World(Cluster):
    """A coordinator session with two servers and two trainers that asked for the next generation."""

    def __init__(self, **changes: Any) -> None:
        self._pods = 0
        super().__init__(config=replace(CONFIG, **changes))

    def register(self, role: str, rank: int, pod: int | None = None) -> Any:
        """Register a new pod, or one again."""
        if pod is None:
            self._pods += 1
            pod = self._pods
            self.incarnations[role, rank] = pod
        about = (f"tcp://{role}:{pod}", pod, 1, f"{role}-{rank}")
        return self.ask(Register(role, *about, rank, NEXT_GENERATION))


def test_a_pod_waits_until_the_holder_of_its_rank_is_silent_and_then_has_it() -> None:
    world = World()
    first = world.incarnation("trainer", 0)
    waiting = world.register("trainer", 0)
    second = world.incarnation("trainer", 0)
    assert not waiting.ready
    assert waiting.missing == "trainer 0, pid 1 on trainer-0, which is alive, to end"
    assert world.beat("trainer", 1).order == "go"
    world.incarnations["trainer", 0] = first
    assert world.beat("trainer", 0).order == "go", "the holder was fenced by one that only waits"
    world.pass_time(7.0, *SERVERS, ("trainer", 1))
    assert world.register("trainer", 0, second).ready
    assert "was restarted as" in world.beat("trainer", 0).reason


def test_a_pod_has_the_rank_of_one_that_has_left_at_once() -> None:
    world = World()
    world.open(0)
    world.leave("trainer", 0)
    assert world.register("trainer", 0).ready


def test_each_holder_of_a_rank_is_newer_than_the_last_one() -> None:
    world = World()
    for generation in (1, 2, 3):
        world.pass_time(7.0, *SERVERS, ("trainer", 1))
        assert world.register("trainer", 0).ready
        member = world.session.members.at("trainer", 0)
        assert member is not None
        assert member.generation == generation


def test_a_pod_that_comes_when_all_work_is_done_is_told_so_whatever_its_rank() -> None:
    world = World()
    world.open(0, leases=0)
    world.leave("trainer", 0)
    world.leave("trainer", 1)
    assert world.beat("server", 0).order == "leave"
    assert world.register("trainer", 0) == DONE
    assert world.register("trainer", 2) == DONE


def test_a_restarted_coordinator_still_knows_that_all_work_is_done() -> None:
    """Its journal has the leaves of the trainers, and no heartbeat of a server has come yet."""
    world = World()
    world.open(0, leases=0)
    world.leave("trainer", 0)
    world.leave("trainer", 1)
    successor = CoordinatorSession(CONFIG, term=1, ranks_named=True)
    successor.restore(world.session.plain())
    successor.begin_again(world.now_s)
    message = Register("trainer", "", 77, 1, "trainer-0", 0, NEXT_GENERATION)
    assert successor.handle(world.now_s, message) == DONE
    assert not successor.has_ended_early


def test_the_successor_of_a_trainer_that_died_at_the_end_is_not_needed_after_a_restart_either() -> None:
    """Servers have left by then, and it would wait for them, end, and come again for ever."""
    world = World()
    world.open(0, leases=0)
    world.leave("trainer", 0)
    world.pass_time(7.0, *SERVERS)
    successor = CoordinatorSession(CONFIG, term=1, ranks_named=True)
    successor.restore(world.session.plain())
    successor.begin_again(world.now_s)
    message = Register("trainer", "", 78, 1, "trainer-1", 1, NEXT_GENERATION)
    assert successor.handle(world.now_s, message) == DONE


def test_trainers_that_were_asked_to_leave_their_work_come_back_to_it() -> None:
    world = World()
    world.open(0)
    for rank in (0, 1):
        world.ask(Leave("trainer", rank, world.incarnation("trainer", rank), {}, True))
    assert world.register("trainer", 0).rank == 0


def test_a_run_whose_processes_were_all_asked_to_leave_has_ended_early() -> None:
    world = World()
    world.open(0)
    assert not world.session.has_ended_early
    world.pass_time(CONFIG.timing.silence_s + 1)
    assert world.session.has_ended_early


def test_a_server_without_its_log_learns_the_generation_that_it_was_given() -> None:
    """It names what it loads again by it, so two of one name would take each other's for done."""
    world = World(recovery="partial")
    world.pass_time(7.0, ("server", 1), ("trainer", 0), ("trainer", 1))
    answer = world.ask(Register("server", "tcp://server:99", 99, 1, "server-0", 0, NEXT_GENERATION, True))
    assert answer.begins["generation"] == 1
