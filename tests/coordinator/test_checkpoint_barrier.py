"""The coordinator's part of a cut, without sockets or clocks: from phase to phase, and every way to fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pslib.config import ClusterConfig
from pslib.coordinator.session import CoordinatorSession
from pslib.wire.fields import plain_of
from pslib.wire.messages import (
    NOWHERE,
    Beat,
    CutReady,
    CutStep,
    CutTable,
    Done,
    EndLease,
    Failure,
    Heartbeat,
    Lease,
    NextLease,
    OpenJob,
    Register,
    SaveSoon,
    Status,
)

NO_STREAMS = np.empty(0, np.uint64)


class Cluster:
    """One server, some trainers, one fit that is saved every 10 seconds."""

    def __init__(
        self,
        trainers: int = 2,
        leases: int = 6,
        by_rank: bool = False,
        term: int = 0,
        to_come: int = 0,
        absent: int = 0,
    ) -> None:
        self.now_s = 100.0
        self.session = CoordinatorSession(ClusterConfig(servers=1, trainers=trainers), term)
        self.trainers = range(absent, trainers)
        for role, ranks in (("server", range(1)), ("trainer", self.trainers)):
            for rank in ranks:
                self.ask(Register(role, f"{role}:{rank}", 10 + rank, 1, "here", rank))
                self.ask(Heartbeat(role, rank, 10 + rank, 1, {}))
        windows = np.arange(leases, dtype=np.uint32)
        details = {"checkpoint": {"every_s": 10.0}, "epochs_to_come": to_come}
        for rank in self.trainers:
            self.ask(OpenJob(rank, 1, "fit", 7, details, windows, by_rank))

    def ask(self, message: Any) -> Any:
        return self.session.handle(self.now_s, message)

    def next_fit(self, job: int) -> None:
        """The evaluation before it is over."""
        self.lease(0, job=job - 1)
        self.end(job - 1)
        self.open_all(job, "fit", checkpoint={"every_s": 10.0})

    def lease(self, rank: int, *holding: int, job: int = 1) -> Lease:
        streams = np.array([job << 32 | index for index in holding], np.uint64)
        answer = self.ask(NextLease(rank, 10 + rank, job, streams))
        assert isinstance(answer, Lease)
        return answer

    def beat(self, rank: int, cut: int = 0) -> dict[str, Any]:
        answer = self.ask(Heartbeat("trainer", rank, 10 + rank, 1, {"cut": cut}))
        assert isinstance(answer, Beat)
        return dict(answer.cut)

    def wait(self, seconds: float) -> None:
        """Let time pass, with heartbeats of all members."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(self.now_s + 1.0, end_s)
            self.ask(Heartbeat("server", 0, 10, 1, {}))
            for rank in self.trainers:
                self.ask(Heartbeat("trainer", rank, 10 + rank, 1, {}))
            self.session.tick(self.now_s)

    def ready(self, rank: int, batches: dict[int, int], reached: int = NOWHERE, paused: bool = True) -> Any:
        streams = np.array([1 << 32 | index for index in batches], np.uint64)
        numbers = np.array(list(batches.values()), np.uint64)
        return self.ask(CutReady(rank, 10 + rank, 1, reached, paused, streams, numbers))

    def all_ready(self) -> None:
        """All trainers pause, with nothing in hand."""
        for rank in self.trainers:
            self.ready(rank, {})

    def open_all(self, job: int, what: str, leases: int = 1, **details: Any) -> None:
        """All trainers make a call."""
        for rank in self.trainers:
            self.ask(OpenJob(rank, job, what, 8, details, np.arange(leases, dtype=np.uint32)))

    def end(self, job: int, index: int = 0, rank: int = 0, epoch: int = 0) -> None:
        """A trainer has done a lease."""
        self.ask(EndLease(rank, 10 + rank, job, job << 32 | index, epoch, {}))

    def step(self, state: str, rank: int = 0, **details: Any) -> Any:
        return self.ask(CutStep(rank, 10 + rank, 1, state, details))

    def pause(self) -> None:
        """Up to where all trainers have been told to stop."""
        self.wait(11.0)
        for _ in range(2):
            phases = [self.beat(rank, cut=1)["phase"] for rank in self.trainers]
        assert set(phases) == {"pause"}


def test_a_cut_is_led_by_a_trainer_that_is_there_where_lower_ranks_have_never_come() -> None:
    """A trainer that a launcher could not start in time: the coordinator ended at the first save."""
    cluster = Cluster(absent=1)
    cluster.lease(1)
    cluster.wait(11.0)
    assert cluster.beat(1, cut=1)["leader"] == 1
    cluster.session.members.trainers[0].state = "left"
    cluster.session.tick(cluster.now_s)
    assert "trainer 1, which leads it, is gone" in cluster.session.events[-1]


def test_a_cut_goes_from_phase_to_phase_and_its_table_says_how_far_each_lease_is() -> None:
    cluster = Cluster()
    assert (cluster.lease(0).index, cluster.lease(1).index) == (0, 1)
    assert cluster.beat(0) == {}
    cluster.wait(11.0)
    assert cluster.beat(0, cut=1)["phase"] == "near"
    assert cluster.beat(1, cut=1)["phase"] == "pause"
    assert cluster.lease(0, 0).state == "wait", "no lease is given out while trainers pause"
    assert cluster.ready(0, {0: 5}) == Done()
    assert cluster.beat(1, cut=1)["phase"] == "pause"
    assert cluster.ready(1, {1: 3}) == Done()
    assert cluster.beat(0, cut=1) == {"number": 1, "phase": "begin", "leader": 0, "step": -1, "last": False}
    begun = cluster.step("begun")
    assert isinstance(begun, CutTable)
    table = plain_of(begun.table)
    assert table["job"] == 1
    assert [job["what"] for job in table["jobs"]] == ["begin", "fit"]
    assert table["leases"]["done"] == []
    assert [lease[:2] for lease in table["leases"]["begun"]] == [[0, 5], [1, 3]]
    assert cluster.beat(1)["phase"] == "write"
    assert cluster.lease(0, 0).state == "held", "training goes on"
    assert cluster.step("commit") == Done()
    assert cluster.step("saved", path="runs/checkpoint-000001", name="0000abcd", bytes=5e6) == Done()
    assert cluster.beat(0) == {}
    assert cluster.session.registry.saved == "runs/checkpoint-000001"
    assert cluster.session.events[-1].startswith("saved runs/checkpoint-000001 (all, 5 MB) in ")


def test_another_cluster_goes_on_from_the_table() -> None:
    first = Cluster()
    for rank in first.trainers:
        first.lease(rank)
    first.end(1)
    first.lease(0)
    first.pause()
    first.ready(0, {2: 4})
    first.ready(1, {1: 9})
    bytes_of_table = first.step("begun").table
    table = plain_of(bytes_of_table)
    second = CoordinatorSession(ClusterConfig(servers=1, trainers=1))
    for role in ("server", "trainer"):
        second.handle(0.0, Register(role, role, 10, 1, "here"))
        second.handle(0.0, Heartbeat(role, 0, 10, 1, {}))
    windows = np.arange(6, dtype=np.uint32)
    message = OpenJob(0, 1, "fit", 7, {}, windows, False, bytes_of_table)
    assert second.handle(50.0, message) == Done()
    given = [second.handle(50.0, NextLease(0, 10, 1, np.arange(0, dtype=np.uint64)))]
    for _ in range(4):
        holding = np.array([one.stream for one in given], np.uint64)
        given.append(second.handle(50.0, NextLease(0, 10, 1, holding)))
    assert [(one.index, one.first_batch) for one in given] == [(1, 9), (2, 4), (3, 0), (4, 0), (5, 0)]
    assert second.since_s(50.0) == pytest.approx(table["since_s"])
    wrong = OpenJob(0, 2, "fit", 7, {}, np.arange(5, dtype=np.uint32), False, bytes_of_table)
    answer = second.handle(50.0, wrong)
    assert isinstance(answer, Failure)
    assert "expected 5 leases, the checkpoint has 6" in answer.text


def test_keys_of_a_place_in_a_store_are_told_to_servers_alone() -> None:
    """Lines of a run go to logs, and any client with a reader's key may ask for its status."""
    cluster = Cluster()
    cluster.pause()
    cluster.all_ready()
    cluster.step("begun")
    place = "s3://KEY:SECRET@bucket/run/checkpoint-000001?region=x"
    assert cluster.step("saved", path=place, name="n", bytes=5e6) == Done()
    session = cluster.session
    assert session.registry.saved == place
    assert session.events[-1].startswith(
        "saved s3://***@bucket/run/checkpoint-000001?region=x (all, 5 MB) in "
    )
    status = cluster.ask(Status())
    told = [
        *session.events,
        status.values["saved"],
        session.failure_detector._kept(),
        session.recoveries.beginning,
    ]
    assert all("bucket/run/checkpoint-000001" in one and "SECRET" not in one for one in told)
    assert session.registry.basis == [{"path": place}]


def test_a_trainer_that_is_not_ready_in_time_is_named_and_the_cut_is_tried_again() -> None:
    cluster = Cluster()
    cluster.pause()
    cluster.ready(0, {})
    cluster.wait(10.5)
    assert cluster.beat(0) == {}
    assert "checkpoint not made: trainers [1] are not ready after" in cluster.session.events[-1]
    assert isinstance(cluster.ready(1, {}), Failure)
    cluster.wait(2.5)
    assert cluster.beat(0)["number"] == 2


def test_a_cut_ends_with_the_trainer_that_leads_it() -> None:
    cluster = Cluster()
    cluster.pause()
    cluster.ready(0, {})
    cluster.ready(1, {})
    cluster.step("begun")
    cluster.session.members.trainers[0].state = "lost"
    cluster.wait(0.5)
    assert "trainer 0, which leads it, is gone" in cluster.session.events[-1]
    assert isinstance(cluster.step("commit"), Failure), "one that slept too long must not commit"


def test_no_cut_begins_before_a_lease_that_was_taken_over_is_done() -> None:
    cluster = Cluster()
    cluster.lease(0)
    cluster.lease(1)
    member = cluster.session.members.trainers[1]
    member.state = "lost"
    cluster.session.registry.free_leases(member, "is lost")
    cluster.trainers = range(1)
    cluster.wait(15.0)
    assert cluster.beat(0) == {}
    assert cluster.lease(0, 0).index == 1
    for index, epoch in ((0, 0), (1, 1)):
        cluster.end(1, index, epoch=epoch)
    cluster.wait(1.5)
    assert cluster.beat(0)["number"] == 1


def test_batches_of_a_trainer_that_was_started_again_count_on() -> None:
    """Its successor counts from 0: the next cut must not wait until it has made up for all of them."""
    cluster = Cluster(trainers=1)
    session = cluster.session
    details = {"checkpoint": {"every_batches": 20}}
    cluster.ask(NextLease(0, 10, 1, NO_STREAMS))
    session.registry.jobs[1].details = details

    def trained(incarnation: int, batches: int) -> dict[str, Any]:
        progress = {"staleness_count": batches}
        cluster.ask(Heartbeat("trainer", 0, incarnation, 1, progress))
        session.tick(cluster.now_s)
        answer = cluster.ask(Heartbeat("trainer", 0, incarnation, 1, progress))
        assert isinstance(answer, Beat)
        return dict(answer.cut)

    assert trained(10, 5000) == {}
    assert trained(10, 5010) == {}
    cluster.ask(Register("trainer", "trainer:0", 99, 1, "here", 0, 1))
    cluster.ask(OpenJob(0, 1, "fit", 7, details, np.arange(6, dtype=np.uint32)))
    lease = cluster.ask(NextLease(0, 99, 1, NO_STREAMS))
    cluster.ask(EndLease(0, 99, 1, lease.stream, lease.epoch, {}))  # the one that it has taken over
    assert trained(99, 9) == {}
    assert trained(99, 10)["phase"] == "near"


def test_a_cut_whose_fit_is_over_is_cancelled() -> None:
    cluster = Cluster(leases=2)
    for rank in cluster.trainers:
        cluster.lease(rank)
    cluster.pause()
    for rank in cluster.trainers:
        cluster.end(1, rank, rank)
    cluster.ask(OpenJob(0, 2, "evaluate", 8, {}, np.zeros(1, np.uint32)))
    cluster.ready(0, {})
    assert "the fit that it was for is over" in cluster.session.events[-1]


def test_a_cut_that_is_asked_for_between_two_fits_is_made_as_the_next_one_begins() -> None:
    cluster = between_fits(to_come=1)
    assert cluster.ask(SaveSoon()).values["asked"]
    cluster.next_fit(3)
    assert cluster.lease(0, job=3).state == "wait"  # it may be over before any trainer has heard of the cut
    cluster.wait(2.0)
    for _ in range(2):
        for rank in cluster.trainers:
            cluster.beat(rank, cut=1)
    cluster.all_ready()
    begun = cluster.step("begun")
    assert isinstance(begun, CutTable)
    table = plain_of(begun.table)
    assert (table["job"], table["leases"]["done"], len(table["jobs"])) == (3, [], 4)
    cluster.step("saved", path="/runs/c1", name="c1")
    assert cluster.lease(0, job=3).state == "held"


def last_cut(cluster: Cluster) -> Cluster:
    """The run is to end: servers have marked the instant."""
    cluster.lease(0)
    assert cluster.ask(SaveSoon(last=True)).values["asked"]
    cluster.wait(1.0)
    for _ in range(2):
        for rank in cluster.trainers:
            cluster.beat(rank, cut=1)
    cluster.all_ready()
    assert cluster.beat(0, cut=1)["last"]
    cluster.step("begun")
    return cluster


def test_trainers_stay_paused_from_the_last_cut_of_a_run_until_they_leave() -> None:
    cluster = last_cut(Cluster())
    for _ in range(2):
        assert [cluster.beat(rank, cut=1)["phase"] for rank in cluster.trainers] == ["held", "held"]
        assert cluster.lease(1).state == "wait"
        cluster.step("saved", path="/runs/c1", name="c1")
    assert not cluster.ask(Status(False)).values["saves_soon"]
    assert not cluster.ask(SaveSoon(last=True)).values["asked"], "nothing was trained since"


@pytest.mark.parametrize("last", [False, True])
def test_who_asks_while_the_last_checkpoint_is_written_gets_that_one(last: bool) -> None:
    cluster = last_cut(Cluster())
    assert cluster.ask(SaveSoon(last=last)).values["asked"]
    cluster.step("saved", path="/runs/c1", name="c1")
    assert not cluster.ask(Status(False)).values["saves_soon"]


def test_trainers_that_nobody_asks_to_leave_after_the_last_cut_go_on() -> None:
    cluster = last_cut(Cluster())
    cluster.step("saved", path="/runs/c1", name="c1")
    cluster.wait(cluster.session.config.timing.drain_s + 1.5)
    assert cluster.beat(0)["number"] == 2, "the next one by schedule"
    assert cluster.lease(1).state == "held"
    assert cluster.ask(SaveSoon()).values["asked"]
    assert not cluster.beat(0)["last"]


def test_trainers_go_on_when_the_last_cut_fails_and_stay_paused_in_the_next_attempt() -> None:
    cluster = last_cut(Cluster())
    cluster.step("failed", reason="no space")
    assert cluster.beat(0) == {}
    cluster.wait(2.0)
    assert (cluster.beat(0)["number"], cluster.beat(0)["last"]) == (2, True)


@pytest.mark.parametrize(("phase", "last"), [("near", True), ("pause", True), ("write", False)])
def test_a_cut_under_way_becomes_the_last_one_unless_trainers_have_gone_on(phase: str, last: bool) -> None:
    cluster = Cluster()
    cluster.lease(0)
    cluster.wait(11.0)
    if phase != "near":
        cluster.pause()
    if phase == "write":
        cluster.all_ready()
        cluster.step("begun")
    assert cluster.ask(SaveSoon(last=True)).values["asked"]
    assert cluster.beat(0)["last"] == last
    if phase == "write":
        cluster.step("saved", path="/runs/c1", name="c1")
        assert cluster.session.cuts.asked
        cluster.wait(1.0)
        assert (cluster.beat(0)["number"], cluster.beat(0)["last"]) == (2, True)


def test_a_beginning_waits_for_one_attempt_alone() -> None:
    cluster = between_fits(to_come=1)
    cluster.ask(SaveSoon())
    cluster.next_fit(3)
    cluster.wait(60.0)  # no trainer says that it has paused
    assert cluster.lease(0, job=3).state == "held"


@pytest.mark.parametrize("to_come", [0, 1])
def test_a_cut_that_is_asked_for_in_an_evaluation_is_made_there_and_knows_the_fit_before_it_as_done(
    to_come: int,
) -> None:
    cluster = between_fits(to_come)
    assert cluster.ask(SaveSoon()).values["asked"]
    assert cluster.lease(0, job=2).state == "held", "it may begin: what comes after it can be saved too"
    table = made(cluster)
    assert [job["what"] for job in table["jobs"]] == ["begin", "fit"]
    assert (table["job"], table["ranks"]) == (2, [])
    assert "leases" not in table
    cluster.end(2)
    cluster.step("saved", path="/runs/c1", name="c1")
    assert not cluster.session.cuts.asked


def test_no_cut_is_made_in_an_evaluation_without_being_asked_for() -> None:
    cluster = between_fits(to_come=1)
    cluster.wait(60.0)
    assert cluster.beat(0) == {}


def test_a_cut_in_step_is_made_in_an_evaluation_and_knows_which_trainers_made_the_steps() -> None:
    cluster = between_fits(to_come=0, by_rank=True)
    cluster.ask(SaveSoon())
    assert made(cluster)["ranks"] == [0, 1]


@pytest.mark.parametrize("then", [("window",), ("window", "evaluate")])
def test_a_cut_while_a_stream_waits_or_predicts_looks_for_the_files_of_that_window_again(
    then: Sequence[str],
) -> None:
    cluster = between_fits(to_come=0, then=then)
    cluster.ask(SaveSoon())
    table = made(cluster)
    assert ([job["what"] for job in table["jobs"]], table["job"]) == (["begin", "fit"], 2)


def test_a_cut_is_made_before_the_next_call_has_begun_and_given_up_when_that_trains() -> None:
    cluster = between_fits(to_come=0, then=())
    assert cluster.ask(SaveSoon()).values["asked"]
    table = made(cluster)
    assert (table["job"], len(table["jobs"])) == (2, 2)
    other = paused(between_fits(to_come=0, then=()))
    other.open_all(2, "fit", checkpoint={"every_s": 10.0})
    other.ready(0, {})
    assert "is over" in other.session.events[-1]
    assert other.lease(0, job=2).state == "wait", "it begins with the cut that is still asked for"


def test_a_cut_in_an_evaluation_is_given_up_when_that_is_over() -> None:
    cluster = paused(between_fits(to_come=0, then=("evaluate", "evaluate")))
    cluster.lease(0, job=3)
    cluster.end(3)
    cluster.open_all(4, "evaluate")
    cluster.ready(0, {})
    assert "is over" in cluster.session.events[-1]


@pytest.mark.parametrize(("to_come", "asked"), [(0, False), (1, True)])
def test_after_a_save_there_is_nothing_to_wait_for_unless_a_fit_follows(to_come: int, asked: bool) -> None:
    cluster = between_fits(to_come, then=("save",))
    cluster.lease(0, job=2)
    cluster.end(2)
    assert cluster.ask(SaveSoon()).values["asked"] is asked


def test_nothing_is_saved_of_a_fit_that_was_given_up_nor_while_a_call_changes_parameters() -> None:
    cluster = between_fits(to_come=0)
    cluster.session.registry.jobs[1].given_up = True
    assert not cluster.ask(SaveSoon()).values["asked"]
    assert not between_fits(to_come=0, then=("measure",)).ask(SaveSoon()).values["asked"]


def test_a_cluster_that_goes_on_from_a_cut_in_an_evaluation_may_go_on_with_another_call() -> None:
    first = between_fits(to_come=0)
    first.ask(SaveSoon())
    made(first)
    table = first.step("begun").table
    second = Cluster(trainers=1)
    second.session.registry.jobs.clear()
    second.ask(OpenJob(0, 2, "save", 5, {}, np.arange(1, dtype=np.uint32), False, table))
    assert [job.what for job in second.session.registry.jobs] == ["begin", "fit", "save"]
    assert second.lease(0, job=2).state == "held"


def paused(cluster: Cluster) -> Cluster:
    """All trainers have heard of the first cut, which is asked for."""
    cluster.ask(SaveSoon())
    cluster.wait(2.0)
    for _ in range(2):
        for rank in cluster.trainers:
            cluster.beat(rank, cut=1)
    return cluster


def made(cluster: Cluster) -> dict[str, Any]:
    """The table of the first cut, for which all trainers pause at once."""
    paused(cluster)
    cluster.all_ready()
    begun = cluster.step("begun")
    assert isinstance(begun, CutTable)
    return dict(plain_of(begun.table))


def between_fits(to_come: int, by_rank: bool = False, then: Sequence[str] = ("evaluate",)) -> Cluster:
    """The first epoch is trained, and evaluated; ``then``: calls after it, all done but the last."""
    cluster = Cluster(leases=2 if by_rank else 1, to_come=to_come, by_rank=by_rank)
    for rank in cluster.trainers if by_rank else [0]:
        cluster.end(1, cluster.lease(rank).index, rank)
    for job, what in enumerate(then, 2):
        if job > 2:
            cluster.lease(0, job=job - 1)
            cluster.end(job - 1)
        cluster.open_all(job, what)
    cluster.wait(2.0)
    return cluster


def test_in_step_all_trainers_go_on_to_the_last_step_that_one_has_begun() -> None:
    cluster = Cluster(by_rank=True)
    for rank in cluster.trainers:
        cluster.lease(rank)
    cluster.pause()
    cluster.ready(0, {0: 4}, reached=4)
    cluster.ready(1, {1: 4}, reached=5, paused=False)  # its step 4 waits for trainer 0
    assert cluster.beat(0, cut=1)["step"] == 5
    assert cluster.beat(1, cut=1)["phase"] == "pause"
    cluster.ready(0, {0: 5}, reached=5)
    cluster.ready(1, {1: 5}, reached=NOWHERE)  # it has nothing in hand, but its part is not done
    assert cluster.beat(1, cut=1)["phase"] == "pause"
    cluster.ready(1, {1: 5}, reached=5)
    assert cluster.beat(1, cut=1)["phase"] == "begin"
    assert [one[:2] for one in plain_of(cluster.step("begun").table)["leases"]["begun"]] == [[0, 5], [1, 5]]


def test_in_step_what_a_trainer_said_before_it_was_ready_and_comes_behind_that_changes_nothing() -> None:
    """Two of its threads report: no trainer trained until the cut was given up, ten seconds later."""
    cluster = Cluster(by_rank=True)
    for rank in cluster.trainers:
        cluster.lease(rank)
    cluster.pause()
    cluster.ready(0, {0: 4}, reached=4)
    cluster.ready(0, {0: 3}, reached=4, paused=False)
    cluster.ready(1, {1: 4}, reached=4)
    assert cluster.beat(0, cut=1)["phase"] == "begin"


def test_what_a_stranger_says_of_a_cut_changes_nothing() -> None:
    cluster = Cluster()
    cluster.pause()
    answer = cluster.ask(CutReady(1, 999, 1, NOWHERE, True, NO_STREAMS, NO_STREAMS))
    assert isinstance(answer, Failure)
    assert answer.code == "fenced"
    assert isinstance(cluster.step("begun", rank=1), Failure)
    assert cluster.beat(0, cut=1)["phase"] == "pause"


def test_what_is_said_of_a_cut_of_an_earlier_coordinator_is_not_taken_for_this_one() -> None:
    """Nothing of a cut is in the journal: the leader's word may come to a successor that makes one too."""
    cluster = Cluster(term=1)
    cluster.wait(11.0)
    number = cluster.beat(0)["number"]
    assert number > 1
    assert isinstance(cluster.step("begun"), Failure)
    assert isinstance(cluster.step("commit"), Failure)
    assert cluster.beat(0)["number"] == number


def test_servers_that_begin_before_all_are_ready_begin_nothing() -> None:
    cluster = Cluster()
    cluster.pause()
    assert isinstance(cluster.step("begun"), Failure)
    assert cluster.beat(0, cut=1)["phase"] == "pause"


# --- trainers in different calls ----------------------------------------------------------------------------


DETAILS = {"checkpoint": {"every_s": 10.0}}


def opens(cluster: Cluster, rank: int, job: int, what: str = "fit", leases: int = 3) -> None:
    """A trainer begins a call, and has a lease of it."""
    details = DETAILS if what == "fit" else {}
    cluster.ask(OpenJob(rank, job, what, 9, details, np.arange(leases, dtype=np.uint32)))
    assert cluster.lease(rank, job=job).state == "held"


@pytest.mark.parametrize(
    ("what", "cut"), [("fit", False), ("measure", False), ("evaluate", True), ("export", True)]
)
def test_no_cut_of_a_fit_is_made_while_a_trainer_pushes_in_a_later_call(what: str, cut: bool) -> None:
    """The later batches are in the rows already: a run that resumed from the cut trained them twice."""
    cluster = Cluster()
    cluster.lease(0)
    opens(cluster, 1, 2, what)
    cluster.wait(30.0)
    assert (cluster.session.cuts._cut is not None) == cut


def test_a_cut_that_is_asked_for_in_an_evaluation_waits_for_the_trainers_of_the_next_fit() -> None:
    cluster = Cluster(leases=1)
    cluster.lease(0)
    cluster.ask(EndLease(0, 10, 1, 1 << 32, 0, {}))
    opens(cluster, 1, 2, "evaluate")
    opens(cluster, 0, 3)
    cluster.ask(SaveSoon())
    cluster.wait(5.0)
    assert cluster.session.cuts._cut is None


def test_a_cut_that_is_asked_for_keeps_no_lease_from_the_trainers_that_it_waits_for() -> None:
    """All would wait for each other: the cut for the first call to be over, and its leases for the cut."""
    cluster = Cluster()
    opens(cluster, 0, 2)
    cluster.ask(SaveSoon())
    cluster.wait(30.0)
    assert cluster.lease(1).state == "held"
