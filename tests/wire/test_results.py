"""Results of calls in a stream of months: a status stays small, and nothing is told twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pslib.coordinator.jobs import CollectiveJob
from pslib.coordinator.leases import LeaseBook
from pslib.coordinator.results import RESULTS_TOLD, fresh_results, of_kind
from pslib.wire.fields import json_array, plain_of
from pslib.wire.messages import CutTable, Done, JobResult, Leave, OpenJob
from tests.support.simulated.one_coordinator import CODEC, EVERYBODY, Cluster


def windows_done(cluster: Cluster, count: int) -> None:
    """Record that so many windows of a stream have been predicted and trained."""
    figures = {"examples": 1000, "epoch": 1, "auc": 0.7, "logloss": 0.5, "calibration": 1.0}
    outcomes = {"window": {"files": ["a"]}, "evaluate": figures, "fit": {"examples": 1000}}
    for _ in range(count):
        for what, values in outcomes.items():
            job = CollectiveJob(what, 0, values, LeaseBook(np.zeros(0, np.uint32)), cluster.now_s)
            job.outcome = {"kind": what, "seconds": 0.5, **values}
            cluster.session.registry.jobs.append(job)


def test_a_status_fits_its_message_however_many_results_there_have_been() -> None:
    cluster = Cluster()
    windows_done(cluster, 10_000)
    status = cluster.status
    assert len(status["results"]) == RESULTS_TOLD
    assert status["results_before"] == {"evaluate": 9_750, "fit": 9_750}
    assert status["fit_seconds"] == 5_000
    assert [of_kind(status, kind)["results_before"] for kind in ("evaluate", "rank")] == [9_750, 0]


def test_a_watcher_sees_each_result_once_but_those_that_are_not_told_any_more() -> None:
    cluster, seen = Cluster(), 0
    for more, expected in ((0, 0), (3, 3), (0, 0), (2, 2), (RESULTS_TOLD, RESULTS_TOLD // 2), (1, 1)):
        windows_done(cluster, more)
        status = of_kind(cluster.status, "evaluate")
        fresh, seen = fresh_results(status["results"], status["results_before"], seen)
        assert len(fresh) == expected
    assert seen == RESULTS_TOLD + 6


def test_a_cut_and_what_goes_on_from_it_know_all_calls_of_a_stream() -> None:
    begun, streamed = {"what": "begin", "fingerprint": 0, "outcome": None}, []
    for i in range(10_000):
        found = {"kind": "window", "seconds": 9.5, "files": [f"day={i}/part-000.parquet"], "rows": [[1000]]}
        results = {"kind": "evaluate", "auc": 0.7, "logloss": 0.5}, {"kind": "fit", "examples": 1000}
        streamed += [
            {"what": one["kind"], "fingerprint": 2**63 + i, "outcome": one} for one in (found, *results)
        ]
    jobs = [begun, *streamed, {"what": "fit", "fingerprint": 5, "outcome": None}]
    leases = {"count": 3, "done": [[0, 1]], "begun": []}
    table = {"jobs": jobs, "job": len(jobs) - 1, "leases": leases, "ranks": [], "since_s": 7.5}
    frames = [bytes(frame) for frame in CODEC.encode(1, CutTable(json_array(table)))]
    told = CODEC.decode(frames).message
    assert isinstance(told, CutTable)
    assert plain_of(told.table) == table
    cluster, last = Cluster(), table["job"]
    opened = OpenJob(0, last, "fit", 5, {}, np.zeros(3, np.uint32), resume=told.table)
    assert cluster.ask(opened) == Done()
    assert cluster.lease(0, job=last).index == 1
    assert cluster.ask(JobResult(last - 3)).values["outcome"]["files"] == ["day=9999/part-000.parquet"]


def test_a_heartbeat_looks_at_the_calls_that_are_open_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, looks, done = Cluster(), Counter[str](), LeaseBook.done.fget
    windows_done(cluster, 1000)
    cluster.open(0, job=3000)
    cluster.beat("trainer", 0)

    def counted(book: LeaseBook) -> bool:
        looks["all"] += 1
        return bool(done and done(book))

    monkeypatch.setattr(LeaseBook, "done", property(counted))
    cluster.beat("trainer", 0)
    cluster.beat("server", 1)
    cluster.session.tick(cluster.now_s)
    cluster.open(1, job=3000)
    assert looks["all"] < 50
    assert cluster.session.registry.first_open == 3000


def test_a_run_that_has_gone_back_has_shown_what_it_still_has() -> None:
    assert fresh_results([{}, {}], 0, 5) == ([], 2)


def test_a_watcher_that_has_missed_results_sees_all_that_are_told() -> None:
    told = [{"number": number} for number in range(5)]
    assert fresh_results(told, 9, 7) == (told, 14)


def test_a_fit_that_is_under_way_counts_as_long_as_a_trainer_trains() -> None:
    """A run that is asked to leave ends in one; servers and the coordinator are there a little longer."""
    cluster = Cluster()
    windows_done(cluster, 1)
    cluster.open(0, job=3)
    cluster.pass_time(4, *EVERYBODY)
    cluster.now_s += 0.25  # no member is due to be heard
    assert cluster.status["fit_seconds"] == 0.5 + 4.25
    for rank in (1, 0):
        assert cluster.ask(Leave("trainer", rank, 100 + rank, {}, preempted=True)) == Done()
        cluster.pass_time(3, *EVERYBODY[: 2 + rank])
    assert cluster.status["fit_seconds"] == 0.5 + 7.25


def test_a_fit_whose_trainers_are_silent_counts_until_they_were_heard_last() -> None:
    cluster = Cluster()
    cluster.open(0)
    cluster.pass_time(4, *EVERYBODY)
    cluster.pass_time(20, *EVERYBODY[:2])
    assert cluster.status["trainers"] == 0
    assert cluster.status["fit_seconds"] == 4


def test_a_fit_that_no_trainer_was_heard_in_has_taken_no_time() -> None:
    cluster = Cluster()
    cluster.now_s += 2.5
    cluster.open(0)
    cluster.pass_time(20, *EVERYBODY[:2])
    assert (cluster.status["trainers"], cluster.status["fit_seconds"]) == (0, 0)


def test_an_evaluation_that_is_under_way_is_no_time_of_a_fit() -> None:
    cluster = Cluster()
    cluster.open(0, what="evaluate")
    cluster.pass_time(4, *EVERYBODY)
    assert cluster.status["fit_seconds"] == 0


def test_a_fit_that_is_done_has_the_seconds_that_it_took() -> None:
    cluster = Cluster()
    cluster.open(0, leases=1)
    cluster.lease(0)
    cluster.pass_time(4, *EVERYBODY)
    cluster.end(0, 0)
    cluster.pass_time(3, *EVERYBODY)
    assert cluster.status["fit_seconds"] == 4
