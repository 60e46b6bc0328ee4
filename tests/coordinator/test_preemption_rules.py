"""Processes are asked to leave in turn: the launcher's turns and the coordinator's answers, no processes."""

from __future__ import annotations

import numpy as np
import pytest

from launch.supervisor.graceful_stop import GracefulStop
from launch.supervisor.outcome import Verdict
from launch.supervisor.run_spec import Task
from pslib.config import ClusterConfig
from pslib.coordinator.leases import stream_of
from pslib.coordinator.rebalance import Rebalance
from pslib.coordinator.session import CoordinatorSession
from pslib.wire.messages import Heartbeat, Lease, Leave, NextLease, OpenJob, Register, Scale

# --- whose turn it is, without processes -------------------------------------------------------------------


class Asked:
    """Stands for a `launch.supervisor.process.Running`."""

    def __init__(self) -> None:
        self.times = 0

    def leave(self) -> None:
        self.times += 1


COORDINATOR, SERVER, TRAINERS = (
    Task("coordinator", 0),
    Task("server", 0),
    (Task("trainer", 0), Task("trainer", 1)),
)
EVERYBODY = (COORDINATOR, SERVER, *TRAINERS)


def exits(coordinator=None, server=None, trainers=(None, None)):
    return dict(zip(EVERYBODY, (coordinator, server, *trainers), strict=True))


def test_servers_are_asked_when_all_trainers_have_left_and_each_is_asked_once() -> None:
    running = {task: Asked() for task in EVERYBODY}
    draining = GracefulStop(running, 20.0, lambda what, limit_s: False, 75)
    for ended in ((None, None), (75, None), (75, None)):
        assert draining.turn(exits(trainers=ended)) is None
        assert running[SERVER].times == 0
    assert draining.turn(exits(trainers=(75, 75))) is None
    assert draining.turn(exits(trainers=(75, 75))) is None
    assert [running[task].times for task in EVERYBODY] == [0, 1, 1, 1]
    assert draining.turn(exits(server=75, trainers=(75, 75))) is None
    assert draining.turn(exits(0, 75, (75, 75))) == Verdict(75)


def test_each_step_of_leaving_has_a_limit() -> None:
    waits = []

    def waited(what: str, limit_s: float) -> bool:
        waits.append((what, limit_s))
        return True

    draining = GracefulStop({task: Asked() for task in EVERYBODY}, 20.0, waited, 75)
    for code in (exits(), exits(trainers=(0, 75)), exits(None, 75, (0, 75))):
        assert draining.turn(code) == Verdict(75)
    assert waits == [
        ("the trainers to leave", 25.0),
        ("the servers to leave", 10.0),
        ("the coordinator to leave", 4.0),
    ]


def test_after_ctrl_c_the_run_ends_with_its_code_when_all_have_left() -> None:
    draining = GracefulStop({task: Asked() for task in EVERYBODY}, 20.0, lambda what, limit_s: False, 130)
    assert draining.turn(exits(server=75, trainers=(75, 75))) is None
    assert draining.turn(exits(0, 75, (75, 75))) == Verdict(130)


def test_a_server_that_dies_while_trainers_leave_is_named() -> None:
    draining = GracefulStop({task: Asked() for task in EVERYBODY}, 20.0, lambda what, limit_s: False, 75)
    assert draining.turn(exits(server=-9)) == Verdict(69, SERVER)


# --- what the coordinator makes of it ----------------------------------------------------------------------


def working_cluster(by_rank: bool = False, servers: int = 1) -> CoordinatorSession:
    """Servers, and two trainers that hold a lease each."""
    session = CoordinatorSession(ClusterConfig(servers=servers, trainers=2))
    for rank in range(servers):
        session.handle(
            0.0, Register("server", "tcp://s" if servers == 1 else f"tcp://s{rank}", rank + 1, 1, "host")
        )
    for rank in range(servers):
        session.handle(0.0, Heartbeat("server", rank, rank + 1, 1, {}))
    for rank in range(2):
        session.handle(0.0, Register("trainer", "", 10 + rank, 1, "host"))
    for rank in range(2):
        about = (rank, 0, "fit", 1, {"examples": 9, "epochs": 1}, np.zeros(3, np.uint32), by_rank)
        session.handle(0.0, OpenJob(*about))
        session.handle(0.0, NextLease(rank, 10 + rank, 0, np.zeros(0, np.uint64)))
    return session


def leave(session: CoordinatorSession, role: str, rank: int, incarnation: int, **progress: object) -> None:
    session.handle(1.0, Leave(role, rank, incarnation, progress, preempted=True))
    session.tick(1.0)


def test_the_lease_of_a_trainer_that_was_asked_to_leave_goes_on_at_its_next_batch() -> None:
    session = working_cluster()
    leave(session, "trainer", 0, 10, streams=[[stream_of(0, 0), 7]])
    assert session.error == ""
    lease = session.handle(1.0, NextLease(1, 11, 0, np.array([stream_of(0, 1)], np.uint64)))
    assert lease == Lease("held", stream_of(0, 0), 0, 1, 7)


def test_a_cluster_whose_trainers_were_all_asked_to_leave_has_not_failed_and_its_servers_may_go() -> None:
    session = working_cluster()
    leave(session, "trainer", 0, 10)
    leave(session, "trainer", 1, 11)
    assert session.error == ""
    assert session.handle(1.0, Heartbeat("server", 0, 1, 1, {})).order == "leave"


def test_a_trainer_of_a_job_in_step_that_was_asked_to_leave_ends_the_run_in_words() -> None:
    session = working_cluster(by_rank=True)
    leave(session, "trainer", 0, 10)
    assert "trainer 0 (pid 1 on host) has left before the job was done" in session.error
    assert "every step waits for every trainer" in session.error


def test_work_that_was_left_to_a_trainer_which_is_then_lost_is_lost_in_words() -> None:
    session = working_cluster()
    leave(session, "trainer", 0, 10)
    session.handle(2.0, NextLease(1, 11, 0, np.array([stream_of(0, 1)], np.uint64)))
    session.handle(2.0, Heartbeat("server", 0, 1, 1, {}))
    session.tick(2.0)
    assert session.error == ""
    for second in range(3, 100):
        session.handle(float(second), Heartbeat("server", 0, 1, 1, {}))
        session.tick(float(second))
    assert session.error == "all trainers are lost before the work was done"


def test_a_server_with_units_that_no_other_can_take_leaves_with_them_and_hears_why() -> None:
    beat = working_cluster().handle(1.0, Heartbeat("server", 0, 1, 1, {"leaving": True}))
    assert beat.order == "leave"
    assert "no server would be left" in beat.reason


@pytest.mark.parametrize("wish", [0, 4])
def test_servers_that_are_all_asked_to_leave_keep_their_units_for_the_run_that_goes_on(wish: int) -> None:
    """The launcher asks them although a trainer, which has died, is still awaited."""
    session = working_cluster(servers=2)
    leave(session, "trainer", 0, 10)
    if wish:
        session.handle(1.0, Scale(wish, [], 7))
    before = session.moves.wanted, session.moves.awaited_ranks()
    asked = [Heartbeat("server", rank, rank + 1, 1, {"leaving": True}) for rank in range(2)]
    assert session.handle(2.0, asked[0]).order == "go"
    assert session.moves.leaving == {0}
    assert session.handle(2.0, asked[1]).order == "leave"
    assert session.handle(2.2, asked[0]).order == "leave"
    goes_on = Rebalance(session.members, print)
    for record in session.moves.records():
        goes_on.replay(record)
    assert goes_on.leaving == set()
    assert (goes_on.wanted, goes_on.awaited_ranks()) == before


def test_a_wish_for_fewer_servers_counts_although_one_that_goes_was_asked_to_leave_before() -> None:
    session = working_cluster(servers=2)
    leave(session, "trainer", 0, 10)
    session.handle(2.0, Heartbeat("server", 1, 2, 1, {"leaving": True}))
    session.handle(2.1, Scale(1, [], 7))
    assert session.handle(2.2, Heartbeat("server", 0, 1, 1, {"leaving": True})).order == "leave"
    assert (session.moves.wanted, session.moves.leaving) == (1, {1})


def test_a_server_that_is_asked_to_leave_long_before_the_others_stays_away() -> None:
    session = working_cluster(servers=3)
    session.handle(1.0, Scale(0, [2], 7))
    leave(session, "trainer", 0, 10)
    for rank in range(2):
        session.handle(2.0, Heartbeat("server", rank, rank + 1, 1, {"leaving": True}))
    assert session.moves.leaving == {0, 1, 2} - {1}
    last = session.handle(2.1, Heartbeat("server", 2, 3, 1, {"leaving": True}))
    assert (last.order, session.moves.leaving) == ("leave", {2})


def test_a_server_that_is_asked_to_leave_alone_ends_the_run_in_words() -> None:
    session = working_cluster()
    leave(session, "server", 0, 1, rows=5, updates_applied=6)
    assert session.error == (
        "server 0 at tcp://s (pid 1 on host) was asked to leave (SIGTERM), with about 5 rows and 6 updates; "
        "there is no checkpoint"
    )
