"""A resumed run reports the whole training that it continues, and its own part of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.cli.run.doctor import doctor_lines
from launch.supervisor.run_records import summary_lines, summary_of
from pslib.config import ClusterConfig
from pslib.coordinator.leases import LeaseBook, stream_of
from pslib.coordinator.session import CoordinatorSession
from pslib.recorder import RunRecorder
from pslib.wire.fields import json_array
from pslib.wire.messages import Done, OpenJob, Result, Status
from tests.recorder.test_recorder import training, watch
from tests.support.hand_clock import HandClock
from tests.support.simulated.one_coordinator import Cluster

HOLDER = (0, 7)
DETAILS = {"epochs": 2, "first_epoch": 0, "examples": 100, "lease_rows": 20, "batch_rows": 8}
"""Two epochs of a window of 50: leases of 20, 20 and 10."""
WINDOWS = np.array([0, 0, 0, 1, 1, 1], np.uint32)


def book(*windows: int) -> LeaseBook:
    return LeaseBook(np.array(windows, np.uint32))


@pytest.mark.parametrize(
    ("done", "batches", "trained"),
    [
        ((), {}, 0),
        ((0,), {}, 20),
        ((2,), {}, 10),  # the last of its window has what is left
        ((0, 2, 3), {1: 1}, 58),
        ((0, 2), {1: 3}, 50),  # a lease's last batch is shorter
        ((0,), {2: 2}, 30),
        (range(6), {}, 100),
    ],
)
def test_leases_tell_how_many_examples_are_trained(done, batches, trained) -> None:
    leases = LeaseBook(WINDOWS)
    for _ in range(6):
        leases.next(HOLDER, range(6))
    for index in done:
        assert leases.end(HOLDER, index, 0)
    leases.progress(HOLDER, batches)
    assert leases.examples_trained(100, 20, 8) == trained


def test_windows_of_different_lengths_share_what_full_leases_leave_and_never_more_than_all() -> None:
    leases = book(0, 0, 1)  # 20 and 6, 13
    for _ in range(3):
        leases.next(HOLDER, range(3))
    assert leases.end(HOLDER, 2, 0)
    assert leases.examples_trained(39, 20, 8) == 10
    leases.progress(HOLDER, {0: 9, 1: 9})
    assert leases.examples_trained(39, 20, 8) == 39


def test_sizes_that_can_not_be_give_no_more_than_all_and_no_less_than_nothing() -> None:
    leases = book(0, 0, 1)
    for _ in range(3):
        leases.next(HOLDER, range(3))
    assert leases.end(HOLDER, 2, 0)
    assert leases.examples_trained(10, 20, 8) == 0
    assert leases.end(HOLDER, 0, 0)
    assert leases.examples_trained(10, 20, 8) == 10


def test_leases_without_known_sizes_count_alike_when_they_are_done() -> None:
    leases = book(0, 0, 0)
    leases.next(HOLDER, ())
    leases.progress(HOLDER, {0: 1})
    assert leases.examples_trained(90, 0, 8) == leases.examples_trained(90, 20, 0) == 0
    leases.end(HOLDER, 0, 0)
    assert leases.examples_trained(90, 0, 8) == leases.examples_trained(90, 20, 0) == 30
    assert book().examples_trained(90, 20, 8) == 0


def open_fit(cluster: Cluster, job: int, table: dict[str, Any] | None = None) -> None:
    resume = json_array(table) if table else np.empty(0, np.uint8)
    details = {**DETAILS, "first_epoch": 1 if job == 2 else 0}
    answer = cluster.ask(OpenJob(0, job, "fit", 5, details, WINDOWS, resume=resume))
    before = Result({"examples_before": 38})  # the answer also says what an earlier run has trained
    assert answer == (before if table else Done())


def resumed() -> Cluster:
    """One epoch of 50 is done, in 30 s; of two more the leases 0, 2 and half of 1."""
    cluster = Cluster()
    before = {"kind": "fit", "seconds": 30.0, "examples": 50, "epochs": 1, "first_epoch": 0}
    jobs = [
        {"what": "begin", "fingerprint": 0, "outcome": None},
        {"what": "fit", "fingerprint": 4, "outcome": {**before, "epochs_to_come": 2}},
        {"what": "fit", "fingerprint": 5, "outcome": None},
    ]
    leases = {"count": 6, "done": [[0, 1], [2, 3]], "begun": [[1, 1, 0.0]]}
    cluster.now_s = 4.0
    table = {"jobs": jobs, "job": 2, "leases": leases, "ranks": [], "since_s": 36.0}
    open_fit(cluster, 2, table)
    return cluster


def test_a_run_that_goes_on_from_a_checkpoint_counts_all_examples_and_knows_those_of_before() -> None:
    cluster = resumed()
    told = cluster.status
    assert (told["examples"], told["examples_before"], told["examples_total"]) == (88, 88, 150)
    assert (told["epoch"], told["epochs"]) == (1, 3)
    assert [cluster.lease(0, held, job=2).index for held in ((), (1,))] == [1, 3]
    cluster.beat("trainer", 0, streams=[[stream_of(2, 1), 2]])
    told = cluster.ask(Status(True)).values
    assert (told["examples"], told["examples_before"]) == (96, 88)
    lines = doctor_lines("tcp://c:1", told, [])
    assert "examples      96 of 150, 88 of them before this run" in lines


def test_its_time_is_its_own() -> None:
    cluster = resumed()
    cluster.now_s = 14.0
    assert (cluster.status["seconds"], cluster.status["fit_seconds"]) == (14.0, 10.0)
    assert cluster.session.since_s(14.0) == 46.0  # what records and rules of age go by
    for index in (1, 3, 4, 5):
        cluster.lease(0, job=2)
        cluster.end(0, index, job=2)
    told = cluster.status
    assert (told["examples"], told["examples_before"], told["fit_seconds"]) == (150, 88, 10.0)


def test_a_runs_time_begins_with_its_first_request() -> None:
    session = CoordinatorSession(ClusterConfig())
    assert session.status(70.0)["seconds"] == 0.0
    session.handle(100.0, Status())
    assert session.status(107.0)["seconds"] == 7.0


def went_on(session: CoordinatorSession) -> Cluster:
    """The same cluster after all of its processes have ended, by its image and by its logs."""
    other = Cluster()
    other.session = CoordinatorSession(session.config, 1)
    other.session.restore(session.plain())
    return other


def test_a_run_that_goes_on_from_its_logs_counts_all_examples_and_its_own_time() -> None:
    cluster = Cluster()
    open_fit(cluster, 1)
    cluster.lease(0, job=1)
    cluster.now_s = 30.0
    cluster.end(0, 0, job=1)
    assert (cluster.status["examples"], cluster.status["examples_before"]) == (20, 0)
    second = went_on(cluster.session)
    second.now_s = 31.0
    second.session.resume(31.0)
    for _ in range(5):
        second.ask(OpenJob(0, 1, "fit", 5, DETAILS, WINDOWS))
        second.session.registry.jobs[1].book.next((0, 100), range(6))
    second.now_s = 41.0
    for index in range(1, 6):
        second.end(0, index, job=1)
    third = went_on(second.session)  # a coordinator that is started again belongs to the same run
    third.now_s = 42.0
    told = third.status
    assert (told["examples"], told["examples_before"], told["fit_seconds"]) == (100, 20, 10.0)
    assert told["seconds"] == 11.0
    third.session.resume(43.0)  # and a run that has nothing left to train has taken no time for it
    told = third.status
    assert (told["examples"], told["examples_before"], told["fit_seconds"]) == (100, 100, 0)


def test_a_fit_that_is_given_up_has_trained_what_was_applied() -> None:
    cluster = Cluster()
    for rank in range(2):
        cluster.ask(OpenJob(rank, 1, "fit", 5, DETAILS, WINDOWS))
        cluster.lease(rank, job=1)
    cluster.end(0, 0, job=1)
    cluster.beat("trainer", 1, streams=[[stream_of(1, 3), 1]])
    before = cluster.status["examples"]
    for rank in range(2):
        cluster.open(rank, job=2, leases=0, what="evaluate")
    assert cluster.status["phase"].startswith("waiting")
    assert cluster.status["examples"] == before == 28


def test_speeds_are_of_what_this_run_has_trained(tmp_path: Path) -> None:
    looks = [training(7_000 + 100 * n, examples_before=7_000, loss_examples=100 * n) for n in (1, 2, 3)]
    lines, whole = watch(tmp_path, looks, every_s=1)
    assert [line["examples_per_s"] for line in lines[:3]] == [100.0] * 3
    assert (lines[2]["examples"], lines[2]["examples_before"]) == (7_300, 7_000)
    assert (whole["examples"], whole["examples_before"], whole["examples_per_s"]) == (7_300, 7_000, 150.0)


def test_the_picture_tells_what_this_run_has_trained_in_its_time(tmp_path: Path, monkeypatch) -> None:
    titles = []
    monkeypatch.setattr("matplotlib.figure.Figure.suptitle", lambda self, text, **_: titles.append(text))
    run = RunRecorder(tmp_path, HandClock(), progress=False)
    run.observe(training(7_300, examples_before=7_000))
    run.finish({})
    assert " 300 examples in " in titles[0]


def test_the_summary_of_a_run_that_went_on_says_both_and_its_speed_is_its_own(tmp_path: Path) -> None:
    status = {"examples": 3_200_000, "examples_before": 960_000, "fit_seconds": 10.0, "seconds": 12.0}
    summary = summary_of(status, [], ClusterConfig())
    assert (summary["examples"], summary["examples_before"]) == (3_200_000, 960_000)
    assert summary["examples_per_s"] == 224_000.0
    lines = summary_lines(summary, tmp_path)
    assert "examples/s    224,000 (2,240,000 examples, 3,200,000 with those before)" in lines
    alone = summary_of(status | {"examples_before": 0}, [], ClusterConfig())
    assert "examples/s    320,000 (3,200,000 examples)" in summary_lines(alone, tmp_path)
