"""Guests of a launched run, such as a notebook: which calls wait for them, by the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.supervisor import supervisor
from pslib.coordinator.session import CoordinatorSession
from pslib.wire.messages import (
    Heartbeat,
    Lease,
    OpenJob,
    Register,
    Result,
    Status,
)
from tests.support.processes.standin_launch import run_standins
from tests.support.simulated.one_coordinator import CONFIG, NO_WINDOWS, Cluster

GUEST, SECOND_GUEST = 2, 3


class Run(Cluster):
    """A coordinator whose trainers name their ranks, as a launcher does; guests come before they do."""

    def __init__(self, guests: int = 1) -> None:
        super().__init__(trainers=0, ranks_named=True)
        for rank in range(2, 2 + guests):
            self.ask(Register("trainer", "", 100 + rank, rank, "laptop"))
        for rank in range(2):
            self.ask(Register("trainer", "", 100 + rank, rank, "host", rank))

    def open(self, rank: int, job: int = 0, leases: int = 4, by_rank: bool = True, **_details: Any) -> Any:
        return super().open(rank, job, leases, by_rank)

    def work(self, rank: int, job: int = 0) -> int:
        """Take and end leases as a trainer; return their number."""
        for done in range(10):
            lease = self.lease(rank, job=job)
            assert isinstance(lease, Lease)
            if lease.state != "held":
                return done
            self.end(rank, lease.index, lease.epoch, job)
        raise AssertionError("a trainer gets leases for ever")

    @property
    def done(self) -> bool:
        return self.session.registry.all_done


def test_a_sync_job_does_not_wait_for_a_guest_that_came_before_it_began() -> None:
    run = Run()
    assert [one.rank for one in run.session.members.live("trainer")] == [0, 1, GUEST]
    assert run.open(0) == run.open(1) == Result({"ranks": [0, 1]})
    assert (run.work(0), run.work(1), run.done) == (2, 2, True)


def test_a_guest_that_leaves_in_the_middle_of_a_sync_job_does_not_end_the_run() -> None:
    run = Run()
    run.open(0)
    run.leave("trainer", GUEST)
    assert run.session.error == ""


def test_a_guest_that_joins_a_sync_job_which_others_have_opened_has_no_part_in_it() -> None:
    """A guest that joins later has no part either: the job's members are fixed by then."""
    run = Run()
    run.open(0)
    assert run.open(GUEST) == Result({"ranks": [0, 1]})
    assert run.work(GUEST) == 0


def test_a_guest_that_opens_a_sync_job_itself_takes_part_and_other_guests_do_not() -> None:
    run = Run(guests=2)
    assert run.open(GUEST) == Result({"ranks": [0, 1, GUEST]})
    assert run.open(SECOND_GUEST) == Result({"ranks": [0, 1, GUEST]})
    assert [run.work(rank) for rank in (0, 1, GUEST, SECOND_GUEST)] == [2, 1, 1, 0]
    assert run.done


def test_a_guest_that_is_alone_by_now_trains_in_step_with_nobody() -> None:
    run = Run(guests=2)
    run.leave("trainer", 0)
    run.leave("trainer", 1)
    assert run.open(SECOND_GUEST) == Result({"ranks": [SECOND_GUEST]})
    assert (run.work(SECOND_GUEST), run.done) == (4, True)


def test_a_call_that_all_trainers_have_gone_on_without_is_given_up_beside_a_guest_that_makes_none() -> None:
    run = Run(guests=2)
    run.open(SECOND_GUEST, by_rank=False)
    for rank in range(2):
        run.open(rank, by_rank=False)
        run.open(rank, job=1, by_rank=False)
    assert not run.session.registry.jobs[0].over  # a guest that has made the call may be at it
    run.open(SECOND_GUEST, job=1, by_rank=False)
    assert run.session.registry.jobs[0].over


def test_jobs_that_go_to_any_trainer_that_asks_are_a_guests_too() -> None:
    run = Run()
    run.open(0, by_rank=False)
    run.open(GUEST, by_rank=False)
    assert run.work(GUEST) == 4


@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_where_no_ranks_are_named_all_that_are_there_train_in_step(trainers: int) -> None:
    """Scripts that are started by hand: the run's own are not known among them."""
    session = CoordinatorSession(CONFIG)
    for rank in range(2):
        session.handle(0.0, Register("server", f"tcp://server:{rank}", 100 + rank, 7, "host"))
        session.handle(0.0, Heartbeat("server", rank, 100 + rank, 1, {}))
    for rank in range(trainers):
        session.handle(0.0, Register("trainer", "", rank, 7, "host"))
    opened = session.handle(0.0, OpenJob(0, 0, "fit", 5, {}, NO_WINDOWS, True))
    assert opened == Result({"ranks": list(range(trainers))})


def test_a_run_that_waits_for_its_guests_alone_names_them() -> None:
    run = Run(guests=2)
    run.open(0, by_rank=False)
    run.work(0)
    assert run.status["phase"] == "epoch 1 done"
    run.leave("trainer", 0)
    assert run.status["phase"] == "epoch 1 done"
    run.leave("trainer", 1)
    both = ["trainer 2 (pid 2 on laptop)", "trainer 3 (pid 3 on laptop)"]
    assert run.status["guests"] == both
    assert run.status["phase"] == f"waiting for {both[0]}, {both[1]} to leave"
    run.leave("trainer", GUEST)
    assert run.status["guests"] == both[1:]
    assert run.status["phase"] == f"waiting for {both[1]} to leave"
    run.leave("trainer", SECOND_GUEST)
    assert (run.status["guests"], run.status["phase"]) == ([], "waiting for 2 servers to leave")


def test_a_guest_that_works_while_the_others_have_gone_is_told_by_its_work() -> None:
    run = Run()
    run.leave("trainer", 0)
    run.leave("trainer", 1)
    run.open(GUEST)
    assert run.status["phase"] == "training"


def test_a_run_whose_own_trainers_have_still_to_come_waits_for_them() -> None:
    session = CoordinatorSession(CONFIG, ranks_named=True)
    for rank in range(2):
        session.handle(0.0, Register("server", f"tcp://server:{rank}", 100 + rank, 7, "host"))
        session.handle(0.0, Heartbeat("server", rank, 100 + rank, 1, {}))
    session.handle(0.0, Register("trainer", "", GUEST, 7, "laptop"))
    status = session.handle(0.0, Status())
    assert isinstance(status, Result)
    assert status.values["phase"] == "waiting for 2 of 2 trainers"


def test_a_launcher_names_the_guest_for_whom_servers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LEAVE_S", 1.5)
    guest = "trainer 1 (pid 7 on laptop)"
    behaviours = {"trainer": "sleep 1", "server": "sleep", "coordinator": "sleep"}
    outcome, said = run_standins(tmp_path, behaviours, status={"phase": "", "guests": [guest]})
    assert outcome.exit_code == 0
    (line,) = said
    waited, _, words = line.partition(" s for ")
    assert words == f"{guest}, coordinator, server 0 to leave; ended"
    assert int(waited.removeprefix("waiting ")) >= 2  # of 1.5 s, or how long they were when it looked again
