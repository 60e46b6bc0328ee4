"""``pslib role``: a cluster whose processes a scheduler starts, one by one, and starts again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from launch.cli.main import main
from launch.job.job import read_job
from launch.job.preflight import hold_port
from launch.runs.role import Records
from pslib.monitor.run_folder import MONITOR, ended_run
from pslib.monitor.sources import open_run
from tests.support.machine.ipv6 import has_ipv6
from tests.support.processes.counting_runs import write_counting_examples, write_job
from tests.support.processes.role_scheduler import RoleScheduler
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.cluster

BATCHES = 94
"""Of an epoch: 24,000 examples, 256 a batch."""
CLUSTER = {"servers": 2, "trainers": 2, "durability": "log", "drain_s": 5.0}
NAMES = (("coordinator", 0), ("server", 0), ("server", 1), ("trainer", 0), ("trainer", 1))


def job_of(folder: Path, epochs: int = 2, **cluster: Any) -> Path:
    examples = write_counting_examples(folder / "train.parquet")
    return write_job(folder, examples, {"epochs": epochs}, CLUSTER | cluster)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[RoleScheduler]:
    state = tmp_path / "state"
    state.mkdir()
    made = RoleScheduler(job_of(tmp_path, epochs=12), state, hold_port())
    yield made
    made.close()


def summary_in(tmp_path: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    return summary


def test_a_cluster_trains_in_any_order_of_its_starts_and_trainers_end_when_the_work_is_done(
    scheduler: RoleScheduler, tmp_path: Path
) -> None:
    for role, rank in NAMES[::-1]:
        scheduler.start(role, rank)
    scheduler.until(
        lambda: scheduler.code_of("trainer-0") == scheduler.code_of("trainer-1") == 0,
        "both trainers to be done",
    )
    scheduler.said("coordinator-0", "all work is done; this process stays")
    for name in ("server-0", "server-1"):
        scheduler.said(name, "nothing is left for this server to do; this process stays")
    summary = summary_in(tmp_path)
    assert summary["phase"] == "done"
    assert summary["examples"] == 12 * 24_000
    assert summary["pushes_sent"] == summary["pushes_applied"]
    assert "examples/s" in scheduler.output("coordinator-0")
    assert (tmp_path / "out" / "checkpoint" / "manifest.json").exists()
    state = open_run(str(tmp_path / "out")).state()
    assert state["run"]["state"] == "ended"
    assert [(one["role"], one["rank"]) for one in state["processes"]] == list(NAMES)

    kept = (tmp_path / "out" / MONITOR).read_text()
    late = scheduler.start("trainer", 2)
    scheduler.until(lambda: scheduler.code_of(late) == 0, "a trainer that comes late to end")
    assert "nothing is left to train" in scheduler.output(late)
    scheduler.kill("coordinator-0")
    scheduler.turn()
    again = scheduler.start("trainer", 1)
    scheduler.until(lambda: scheduler.code_of(again) == 0, "one that meets a new coordinator to end")
    scheduler.until(lambda: ended_run(tmp_path / "out"), "the run to count as ended")
    assert (tmp_path / "out" / MONITOR).read_text() == kept, "the new coordinator saw nothing of it"


@has_ipv6
def test_a_cluster_of_ipv6_alone_trains_and_is_shown_while_it_does(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    job = job_of(tmp_path, epochs=200, servers=1, trainers=1)
    scheduler = RoleScheduler(job, tmp_path / "state", hold_port(), "[::1]")
    monitor = tmp_path / "out" / MONITOR
    try:
        for role in ("coordinator", "server", "trainer"):
            scheduler.start(role)
        scheduler.reached_epoch(2)
        assert "listening at tcp://[::1]:" in scheduler.output("coordinator-0")
        assert "Traceback" not in scheduler.output("server-0")
        scheduler.until(monitor.exists, "the state of the run to be kept")
        with closing(open_run(str(tmp_path / "out"))) as live:
            state = live.state()
    finally:
        scheduler.close()
    assert state["run"]["state"] == "running"
    assert {one["role"] for one in state["processes"]} == {"coordinator", "server", "trainer"}
    assert json.loads(monitor.read_text())["state"]["run"]["cluster_id"] == "scheduled"


def test_every_process_may_be_killed_and_every_push_counts_once(
    scheduler: RoleScheduler, tmp_path: Path
) -> None:
    for role, rank in NAMES:
        scheduler.start(role, rank)
    scheduler.reached_epoch(1)
    for name in ("server-0", "trainer-1", "coordinator-0"):
        scheduler.kill(name)
        scheduler.turn()
    scheduler.kill("server-1", signal.SIGTERM)
    scheduler.kill("trainer-0", signal.SIGTERM)
    scheduler.until(
        lambda: scheduler.code_of("trainer-0") == scheduler.code_of("trainer-1") == 0,
        "both trainers to be done",
        limit_s=90.0,
    )
    scheduler.said("coordinator-0", "all work is done")
    summary = summary_in(tmp_path)
    assert summary["examples"] == 12 * 24_000
    assert summary["pushes_missing"] == 0
    assert summary["pushes_applied"] == 12 * BATCHES  # those sent: twice where a lease is taken over
    assert {name for name, _ in scheduler.ends} >= {"server-0", "server-1", "trainer-1", "coordinator-0"}


def test_a_cluster_that_is_ended_and_started_again_goes_on(scheduler: RoleScheduler, tmp_path: Path) -> None:
    """As a job that is deleted and applied again, with its volumes kept."""
    for role, rank in NAMES:
        scheduler.start(role, rank)
    scheduler.reached_epoch(2)
    scheduler.close()
    for role, rank in NAMES:
        scheduler.start(role, rank)
    scheduler.until(
        lambda: scheduler.code_of("trainer-0") == scheduler.code_of("trainer-1") == 0,
        "both trainers to be done",
    )
    scheduler.said("coordinator-0", "all work is done")
    assert summary_in(tmp_path)["examples"] == 12 * 24_000
    assert (tmp_path / "out" / "metrics-0.jsonl").exists()


def test_a_job_that_needs_a_log_that_is_gone_fails_and_goes_on_with_the_log(
    scheduler: RoleScheduler, tmp_path: Path
) -> None:
    for role, rank in NAMES:
        scheduler.start(role, rank)
    scheduler.reached_epoch(2)
    scheduler.kill("server-1")
    log = tmp_path / "state" / "server-1"
    log.rename(tmp_path / "kept")
    scheduler.until(
        lambda: scheduler.code_of("trainer-0") == scheduler.code_of("trainer-1") == 64,
        "both trainers to end for good",
    )
    assert "has no log of what its predecessor knew" in scheduler.output("trainer-0")
    scheduler.close()
    shutil.rmtree(log)
    (tmp_path / "kept").rename(log)
    for role, rank in NAMES:
        scheduler.start(role, rank)
    scheduler.until(
        lambda: scheduler.code_of("trainer-0") == scheduler.code_of("trainer-1") == 0,
        "both trainers to be done",
    )
    scheduler.said("coordinator-0", "all work is done")
    summary = summary_in(tmp_path)
    assert summary["examples"] == 12 * 24_000
    assert summary["pushes_applied"] == 12 * BATCHES
    assert not [end for end in scheduler.ends if end[1] == 70]


def test_a_trainer_for_whose_rows_no_server_has_room_ends_in_a_way_that_a_scheduler_counts(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    examples = write_counting_examples(tmp_path / "train.parquet", 200_000)
    small = CLUSTER | {"servers": 1, "trainers": 1, "server_memory_bytes": 4 << 20}
    job = write_job(tmp_path, examples, {}, small)
    scheduler = RoleScheduler(job, state, hold_port())
    try:
        for role in ("coordinator", "server", "trainer"):
            scheduler.start(role)
        scheduler.until(lambda: ("trainer-0", 71) in scheduler.ends, "the trainer to end")
    finally:
        scheduler.close()
    assert "memory" in scheduler.output("trainer-0")
    assert "Traceback" not in scheduler.output("trainer-0")


def test_a_coordinator_whose_records_can_not_be_written_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_of(tmp_path)
    (tmp_path / "out").write_text("a file")
    words = ["--listen", "tcp://127.0.0.1:0", "--cluster-id", "x", "--log", str(tmp_path / "state")]
    assert main(["role", "coordinator", str(job), *words]) == 64
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"pslib: out: {tmp_path / 'out'} can't be written to: it is a file; set another out"


@pytest.mark.parametrize(
    ("cluster", "line"),
    [
        ({"durability": "memory"}, "cluster.durability: expected log or disk where no launcher starts"),
        ({"recovery": "rollback"}, "cluster.recovery: expected log or partial where no launcher starts"),
    ],
)
def test_a_job_that_needs_a_launcher_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster: dict[str, str], line: str
) -> None:
    job = job_of(tmp_path, **cluster)
    words = ["--rank", "0", "--coordinator", "tcp://127.0.0.1:1", "--cluster-id", "x"]
    assert main(["role", "server", str(job), *words]) == 64
    said = capsys.readouterr().err
    assert said.startswith(f"pslib: {line}")
    assert said.count("\n") == 1


def test_a_process_that_nobody_tells_who_it_is_says_what_it_has_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PSLIB_RANK", "RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "node")
    assert main(["role", "trainer", str(job_of(tmp_path))]) == 64
    assert "rank: which one is this? Expected --rank or PSLIB_RANK" in capsys.readouterr().err


def test_a_script_is_sent_to_the_command_that_runs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import pslib\n")
    where = ["--rank", "0", "--coordinator", "tcp://127.0.0.1:1", "--cluster-id", "x"]
    for words in (["role", "trainer", str(script), *where], ["k8s", "render", str(script), "--image", "i"]):
        assert main(words) == 64
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(
            f"pslib: {script}: expected a job file (YAML), got a script; pslib launch runs it"
        )


def test_a_process_that_is_asked_to_leave_before_it_has_read_its_job_leaves(tmp_path: Path) -> None:
    """Process 1 of a container ignores SIGTERM until it has a handler: all its grace period would pass."""
    job = tmp_path / "job.yaml"
    os.mkfifo(job)
    command = [sys.executable, "-m", "pslib", "role", "server", str(job)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with job.open("w"):  # opened, once the other end is opened to read
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75
    assert said.splitlines()[-1] == "pslib: asked to leave (SIGTERM)"
    assert "Traceback" not in said


def test_a_coordinator_that_stays_after_the_end_keeps_no_status(tmp_path: Path) -> None:
    """A coordinator that stays tells two statuses a second until its pod is deleted."""
    job = read_job(job_of(tmp_path))
    with Records(job, job.cluster_config, "a") as records:
        records.put({"phase": "done"})  # a predecessor has written the records
        wait_until(lambda: not records.is_recording, 10, "nothing left to record")
        for _ in range(1000):
            records.put({"phase": "done"})
        assert records.waiting == 0
