"""``pslib doctor``: what it finds in made-up clusters, and in a real one with a stopped server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.cli.main import main
from launch.cli.run.doctor import doctor_lines
from launch.supervisor.diagnosis import Finding, diagnose
from launch.supervisor.discovery import find_cluster, note_cluster
from pslib.config import ClusterConfig, Timing
from pslib.coordinator.session import CoordinatorSession
from pslib.errors import ConfigurationError
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.messages import Heartbeat, NextLease, OpenJob, Register, Status
from tests.support.clusters import cluster_of
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import Start, launch_counting, write_counting_examples
from tests.support.waiting import PATIENCE, WAIT_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
NAMED_S = 10.0
"""Limit within which a process that hangs is named."""


def status_of(now_s: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A cluster of two servers and two trainers as its coordinator tells it; changes by member."""
    session = CoordinatorSession(ClusterConfig(servers=2, trainers=2))
    members = [("server", 0), ("server", 1), ("trainer", 0), ("trainer", 1)]
    for role, rank in members:
        session.handle(0.0, Register(role, f"tcp://{role}:{rank}" * (role == "server"), 10 + rank, 7, "host"))
    for role, rank in members:
        progress = {"rows": 50_000, "jobs_waiting": [0]} if role == "server" else {"examples": 9, "waits": []}
        progress |= changes.get(f"{role}_{rank}", {})
        session.handle(0.0, Heartbeat(role, rank, 10 + rank, 1, progress))
    session.handle(0.0, OpenJob(0, 0, "fit", 1, {"examples": 90, "epochs": 1}, np.zeros(4, np.uint32)))
    session.handle(0.0, NextLease(1, 11, 0, np.zeros(0, np.uint64)))
    return dict(session.handle(now_s, Status(True)).values)


def found(status: dict[str, Any], stats: list[Any] | None = None) -> list[str]:
    """Return the findings of `diagnose`; servers answer unless told otherwise."""
    findings = diagnose(status, stats or [{}, {}], "tcp://10.0.0.1:7000")
    return [f"{one.what} -> {one.advice}" for one in findings]


def test_nothing_is_wrong_with_a_cluster_that_works() -> None:
    status = status_of()
    assert found(status) == []
    lines = doctor_lines("tcp://c:1", status, [])
    assert "training      epoch 1/1, 0 finished" in lines
    assert "examples      0 of 90" in lines
    assert "leases        0/4 done, 3 free; held: trainer 1: 1" in lines
    assert lines[-1] == "nothing is wrong"
    assert json.dumps(status)
    status["pushes_missing"] = 3
    pushes = "pushes        0 sent, 0 applied; 3 LOST that were acknowledged"
    assert pushes in doctor_lines("tcp://c:1", status, [])
    status["moves"] |= {"moved": 4, "units": 20, "bytes": 3_000_000, "awaited": 1}
    moves = "moves         4 of 20 units, 3.0 MB; waiting for 1 more server to join"
    assert moves in doctor_lines("tcp://c:1", status, [])


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_report_shows_no_keys_of_where_checkpoints_are(
    form: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Looked:
        def status(self, *_: Any, **__: Any) -> dict[str, Any]:
            return status_of() | {"saved": "s3://key:secret@bucket/saved"}

        def server_stats(self, *_: Any) -> list[Any]:
            return [{}, {}]

        def close(self) -> None:
            pass

    monkeypatch.setattr("pslib.cluster.watch", lambda *_: Looked())
    assert main(["doctor", "tcp://c:1", "--cluster-id", "a", *form]) == 0
    told = capsys.readouterr().out
    assert "s3://***@bucket/saved" in told
    assert "secret" not in told


def test_a_silent_member_is_named_with_the_time_it_has_left() -> None:
    (line, *_rest) = found(status_of(4.0))
    assert line.startswith(
        "the coordinator has not heard server 0 at tcp://server:0 (pid 7 on host) for 4.0 s;"
    )
    assert "after 6 s it counts as lost" in line


def test_who_waits_for_whom_is_told_with_the_reason() -> None:
    waits = [["tcp://server:1", "Push", 7.0], ["tcp://server:0", "Pull", 0.5]]
    (line,) = found(status_of(trainer_0={"waits": waits}))
    assert line.startswith(
        "trainer 0 (pid 7 on host) waits 7 s for server 1 at tcp://server:1 (pid 7 on host): Push -> "
    )
    (line,) = found(
        status_of(trainer_0={"waits": [["tcp://server:1", "Push of 9 bytes, for credit: ...", 7.0]]})
    )
    assert "credit_bytes" in line


def test_the_address_of_a_server_that_is_gone_is_not_taken_for_the_coordinators() -> None:
    waits = [["tcp://10.0.0.1:7000", "NextLease", 7.0], ["tcp://10.0.0.1:7001", "Pull", 8.0]]
    first, second = found(status_of(trainer_0={"waits": waits}))
    assert "waits 7 s for the coordinator at tcp://10.0.0.1:7000: NextLease -> is the coordinator " in first
    assert "waits 8 s for a process that is no member any more, at tcp://10.0.0.1:7001: Pull -> " in second
    assert "its successor" in second


def test_every_member_is_listed_with_its_process() -> None:
    lines = doctor_lines("tcp://c:1", status_of(), [])
    assert len([line for line in lines if " live, pid 7 on host, heard 1.0 s ago; " in line]) == 4


def test_a_sync_step_names_the_trainer_that_all_others_wait_for() -> None:
    status = status_of(
        server_0={"step_waits": [[12, [1]]], "held_pushes": 1},
        trainer_0={"waits": [["tcp://server:0", "Push", 9.0]]},
    )
    assert found(status)[0].startswith("sync step 12 on server 0 waits for trainer 1; it holds 1 push")


def test_a_server_that_beats_but_does_not_answer_is_told_with_its_queue() -> None:
    (line,) = found(status_of(server_1={"jobs_waiting": [3, 4]}), [{}, None])
    assert "server 1 at tcp://server:1 (pid 7 on host) beats but answers nothing; 7 pieces of work" in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"server_0": {"jobs_waiting": [0, 400]}}, "400 pieces of work wait for a shard thread of server 0"),
        ({"server_1": {"memory_limit_bytes": 100, "memory_bytes": 95}}, "server 1 has 5 of 100 bytes left"),
        (
            {"server_0": {"log_bytes": 5 << 30, "log_free_bytes": 4 << 30}},
            "the disk of server 0's log has 4,294,967,296 bytes left; the log takes 5,368,709,120",
        ),
        ({"server_1": {"rows": 500_000}}, "server 1 has 1.82 times the mean of rows"),
    ],
)
def test_what_is_short_is_told(changes: dict[str, Any], words: str) -> None:
    assert words in found(status_of(**changes))[0]


def test_processes_that_have_not_joined_are_waited_for() -> None:
    session = CoordinatorSession(ClusterConfig(servers=2, trainers=1))
    session.handle(0.0, Register("server", "tcp://s", 1, 7, "host"))
    lines = found(dict(session.handle(5.0, Status(True)).values))
    assert any("waits for 1 of 2 servers to join, for 5 s" in line for line in lines)


def test_findings_are_numbered_with_what_to_do() -> None:
    lines = doctor_lines("tcp://c:1", {}, [Finding("a is short", "make it long")])
    assert lines[-3:] == ["1. a is short", "   -> make it long", "1 finding"]


# --- where the cluster is ----------------------------------------------------------------------------------


def test_a_run_folder_says_where_its_cluster_is(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    note_cluster(tmp_path / "logs", "tcp://127.0.0.1:5", "abc")
    assert find_cluster(str(tmp_path), None) == ("tcp://127.0.0.1:5", "abc")
    assert find_cluster("tcp://h:1", "x") == ("tcp://h:1", "x")


@pytest.mark.parametrize("where", [None, "nowhere", "tcp://h:1"])
def test_a_cluster_that_nobody_can_mean_is_one_line(where: str | None, monkeypatch: Any) -> None:
    monkeypatch.delenv("PSLIB_COORDINATOR", raising=False)
    monkeypatch.delenv("PSLIB_CLUSTER_ID", raising=False)
    with pytest.raises(ConfigurationError) as error:
        find_cluster(where, None)
    assert "\n" not in str(error.value)


# --- what servers and trainers count -----------------------------------------------------------------------


def test_heartbeats_carry_queues_credit_and_waits() -> None:
    with cluster_of(servers=2, timing=Timing(heartbeat_s=0.1)) as cluster:
        client = cluster.join().client
        client.setup([TableSpec("t", (PartSpec("v", 2, SGD(1.0)),))])
        client.push({"t": (np.arange(5, dtype=np.uint64), np.ones((5, 2), np.float32))}).wait()
        servers: list[dict[str, Any]] = []
        members: list[dict[str, Any]] = []

        def are_told() -> bool:
            members[:] = client.ask_coordinator(Status(True)).values["members"]
            servers[:] = [one for one in members if one["role"] == "server"]
            return sum(one.get("rows", 0) for one in servers) == 5

        wait_until(are_told, WAIT_S, "heartbeats to tell of five rows", pause_s=0.05)
    assert [one["jobs_waiting"] for one in servers] == [[0], [0]]
    assert all(
        one["credit_bytes"] > one["credit_granted_bytes"] == one["credit_wished_bytes"] for one in servers
    )
    (trainer,) = [one for one in members if one["role"] == "trainer"]
    assert trainer["waits"] == []


# --- a real cluster ----------------------------------------------------------------------------------------


def doctor(*arguments: str | Path) -> tuple[int, dict[str, Any], float]:
    begin_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "launch.cli.main", "doctor", *map(str, arguments), "--json"],
        cwd=ROOT, env=None, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout), time.monotonic() - begin_s


def test_a_healthy_cluster_ends_with_0_and_a_stopped_server_or_coordinator_is_named_within_10_s(
    start: Start, tmp_path: Path
) -> None:
    examples = write_counting_examples(tmp_path / "examples.parquet")
    command: Command = launch_counting(
        start, examples, tmp_path, more=["--pause-s", "0.05", "--epochs", "50"]
    )
    report: dict[str, Any] = {}

    def is_healthy() -> bool:
        nonlocal report
        code, report, _ = doctor(command.out)
        assert report["healthy"] == (code == 0)
        return code == 0 and report["status"]["pushes_sent"] > 0

    wait_until(is_healthy, WAIT_S, lambda: f"heartbeats to tell of the training: {report['findings']}")
    command.kill("coordinator", signal.SIGSTOP)
    code, report, seconds = doctor(command.out)
    command.kill("coordinator", signal.SIGCONT)
    assert code == 1
    assert seconds < PATIENCE * NAMED_S
    assert "does not answer" in report["findings"][0]["what"]
    wait_until(is_healthy, WAIT_S, lambda: f"the coordinator to go on: {report['findings']}")
    command.kill("server 1", signal.SIGSTOP)
    time.sleep(3.2)
    stopped = f"pid {command.pid_of('server 1')} on "

    def is_named() -> bool:  # a coordinator that finds no core meanwhile counts less of the silence
        nonlocal code, report, seconds
        code, report, seconds = doctor(command.out)
        if "ended" in report:  # where a look takes longer than a run bears the silence
            return "server 1" in report["ended"]["error"]
        return any(stopped in one["what"] for one in report["findings"])

    wait_until(is_named, NAMED_S, lambda: f"{stopped} to be named: {report}")
    assert code == 1
    assert seconds < PATIENCE * NAMED_S
    command.process.send_signal(signal.SIGINT)
    assert command.finish(20) in (69, 130)
