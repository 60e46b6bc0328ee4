"""Guests of a launched run, such as a notebook: who waits for them, and who does not, by the coordinator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pslib.protocol.coordinator_session import CoordinatorSession
from pslib.protocol.leases import stream_of
from pslib.protocol.messages import EndLease, Heartbeat, Lease, Leave, NextLease, OpenJob, Register, Result
from tests.one_coordinator import CONFIG, NO_WINDOWS

GUEST, SECOND_GUEST = 2, 3


class Run:
    """A coordinator whose trainers name their ranks, as a launcher's do; pids are incarnations."""

    def __init__(self, guests: int = 1) -> None:
        self.session = CoordinatorSession(CONFIG, ranks_named=True)
        for rank in range(2):
            self.ask(Register("server", f"tcp://server:{rank}", 100 + rank, 100 + rank, "host"))
            self.ask(Heartbeat("server", rank, 100 + rank, 1, {}))
        for rank in range(2, 2 + guests):
            self.ask(Register("trainer", "", rank, rank, "laptop"))
        for rank in range(2):
            self.ask(Register("trainer", "", rank, rank, "host", rank))

    def ask(self, message: Any) -> Any:
        return self.session.handle(0.0, message)

    def open(self, rank: int, job: int = 0, by_rank: bool = True, leases: int = 4) -> Any:
        windows = np.zeros(leases, np.uint32)
        return self.ask(OpenJob(rank, job, "fit", 5, {"epochs": 1, "examples": 9}, windows, by_rank))

    def work(self, rank: int, job: int = 0) -> int:
        """How many leases a trainer gets and ends."""
        for done in range(10):
            lease = self.ask(NextLease(rank, rank, job, np.empty(0, np.uint64)))
            assert isinstance(lease, Lease)
            if lease.state != "held":
                return done
            self.ask(EndLease(rank, rank, job, stream_of(job, lease.index), lease.epoch, {}))
        raise AssertionError("a trainer gets leases for ever")

    @property
    def done(self) -> bool:
        return self.session.desk.all_done


def test_a_sync_job_does_not_wait_for_a_guest_that_came_before_it_began() -> None:
    run = Run()
    assert [one.rank for one in run.session.members.live("trainer")] == [0, 1, GUEST]
    assert run.open(0) == run.open(1) == Result({"ranks": [0, 1]})
    assert (run.work(0), run.work(1), run.done) == (2, 2, True)


def test_a_guest_that_leaves_in_the_middle_of_a_sync_job_does_not_end_the_run() -> None:
    run = Run()
    run.open(0)
    run.ask(Leave("trainer", GUEST, GUEST, {}))
    assert run.session.error == ""


def test_a_guest_that_joins_a_sync_job_which_others_have_opened_has_no_part_in_it() -> None:
    """As one that comes later: the others know by then who they wait for."""
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
    for rank in range(2):
        run.ask(Leave("trainer", rank, rank, {}))
    assert run.open(SECOND_GUEST) == Result({"ranks": [SECOND_GUEST]})
    assert (run.work(SECOND_GUEST), run.done) == (4, True)


def test_jobs_that_go_to_whoever_asks_are_a_guests_too() -> None:
    run = Run()
    run.open(0, by_rank=False)
    run.open(GUEST, by_rank=False)
    assert run.work(GUEST) == 4


@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_where_no_ranks_are_named_all_that_are_there_train_in_step(trainers: int) -> None:
    """Scripts that are started by hand: nobody can tell which of them are the run's own."""
    session = CoordinatorSession(CONFIG)
    for rank in range(2):
        session.handle(0.0, Register("server", f"tcp://server:{rank}", 100 + rank, 7, "host"))
        session.handle(0.0, Heartbeat("server", rank, 100 + rank, 1, {}))
    for rank in range(trainers):
        session.handle(0.0, Register("trainer", "", rank, 7, "host"))
    opened = session.handle(0.0, OpenJob(0, 0, "fit", 5, {}, NO_WINDOWS, True))
    assert opened == Result({"ranks": list(range(trainers))})
