"""Runs whose lines are JSON, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.cli.main import main
from launch.job.preflight import hold_port
from tests.support.processes.counting_runs import write_counting_examples, write_job
from tests.support.processes.role_scheduler import RoleScheduler

pytestmark = pytest.mark.cluster

FIELDS = ["time", "level", "logger", "role", "rank", "run", "message", "exception"]
TWO = {"servers": 1, "trainers": 2}
SCRIPT = """\
import logging
import os
import sys
import threading

import pslib

logging.getLogger("mine").warning("of the script")
os.write(2, b"of a library \\xff\\n")
sys.stderr.write("50%\\r")
thread = threading.Thread(target=lambda: 1 // 0, name="mine")
thread.start()
thread.join()
with pslib.connect():
    logging.getLogger("pslib.client").warning("pslib: two\\n  lines \\udc80")
    print("two\\nlines \\u2028 \\u00e9")
    raise ValueError("a\\n\\u00e9")
"""


def records(text: str) -> list[dict[str, Any]]:
    """The records of an output, each line of which must be one."""
    lines = text.removesuffix("\n").split("\n")
    found = [json.loads(line) for line in lines]
    assert [list(one) for one in found] == [FIELDS] * len(lines)
    return found


def logged(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of each log file of a run."""
    return {file.stem: records(file.read_text()) for file in (out / "logs").glob("*.log")}


def test_a_script_that_crashes_has_its_traceback_in_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    run = ["launch", "--log-format", "json", "--restarts", "0", "--out", "run", "script.py"]
    assert main(run) == 1
    screen = capfd.readouterr()
    out, err, logs = records(screen.out), records(screen.err), logged(tmp_path / "run")
    assert set(logs) == {"coordinator", "server-0", "trainer-0", "launcher"}
    for name, lines in logs.items():
        role, _, rank = name.partition("-")
        assert {(one["role"], one["rank"]) for one in lines} == {(role, int(rank) if rank else None)}
    (run_id,) = {one["run"] for lines in logs.values() for one in lines}
    assert run_id == json.loads((tmp_path / "run" / "logs" / "cluster.json").read_text())["cluster_id"]
    in_thread, crash = [one for one in out if one["exception"]]
    assert (in_thread["message"], in_thread["level"]) == ("Exception in thread mine", "error")
    assert "\nZeroDivisionError: " in in_thread["exception"]
    assert (crash["level"], crash["role"], crash["rank"]) == ("error", "trainer", 0)
    assert crash["message"] == "ValueError: a\né"
    assert crash["exception"].startswith("Traceback (most recent call last):\n")
    assert 'script.py", line 17' in crash["exception"]
    printed = [one["message"] for one in out if one["logger"] == "output"]
    assert printed[:6] == [
        "of the script",
        "of a library �",
        "50%",
        in_thread["message"],
        "two",
        "lines \u2028 é",
    ]
    (warning,) = [one for one in err if one["logger"] == "pslib.client"]
    assert (warning["role"], warning["message"]) == ("trainer", "two\n  lines \\udc80")
    assert [one["message"] for one in logs["trainer-0"] if one["level"] == "warning"] == [warning["message"]]
    (end,) = [one for one in err if one["role"] == "launcher" and "exit code 1" in one["message"]]
    assert end["run"] == run_id

    assert main(["logs", "run", "--role", "trainer"]) == 0
    texts = [line.split(" ", 1)[1] for line in capfd.readouterr().out.split("\n") if line]
    assert texts[:2] == ["output  trainer-0 of the script", "output  trainer-0 of a library �"]
    assert texts[-2:] == ["output  trainer-0 ValueError: a", "output  trainer-0 é"]


def test_the_job_file_asks_for_json_and_an_option_for_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    examples = write_counting_examples(tmp_path / "train.parquet", 2_000)
    job = str(write_job(tmp_path, examples, {}, TWO | {"log_format": "json"}))
    assert main(["train", job]) == 0
    screen = capfd.readouterr()
    assert any(one["message"].startswith("examples/s") for one in records(screen.out))
    assert any(" training" in one["message"] for one in records(screen.err))
    logs = logged(tmp_path / "out")
    assert "pslib.trainer.pipeline.compute" in {one["logger"] for one in logs["trainer-1"]}
    assert main(["train", job, "--log-format", "text", "--overwrite"]) == 0
    screen = capfd.readouterr()
    assert screen.out.startswith("examples/s")
    assert (
        " message coordinator pslib-started " in (tmp_path / "out" / "logs" / "coordinator.log").read_text()
    )


def test_errors_of_the_command_line_are_records_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PSLIB_LOG_FORMAT", "json")
    assert main(["train", str(tmp_path / "none.yaml")]) == 64
    (error,) = records(capfd.readouterr().err)
    assert (error["level"], error["role"], error["rank"], error["run"]) == ("error", "launcher", None, None)
    assert "none.yaml" in error["message"]
    assert error["exception"] is None
    monkeypatch.setenv("PSLIB_DEBUG", "1")
    assert main(["role", "trainer", str(tmp_path / "none.yaml")]) == 64
    (error,) = records(capfd.readouterr().err)
    assert error["role"] == "trainer"
    assert error["exception"].startswith("Traceback")
    monkeypatch.setenv("PSLIB_LOG_FORMAT", "xml")
    assert main(["train", "a.yaml"]) == 64
    assert "'xml' is not one of" in capfd.readouterr().err


def test_a_run_whose_reader_has_gone_goes_on_to_its_end(tmp_path: Path) -> None:
    job = write_job(tmp_path, write_counting_examples(tmp_path / "train.parquet", 2_000), {}, TWO)
    command = [sys.executable, "-m", "pslib", "train", str(job), "--log-format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        assert run.stdout is not None
        records(run.stdout.readline().decode())
        run.stdout.close()
        assert run.wait(120) == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["phase"] == "done"


def test_processes_that_a_scheduler_starts_write_records_alone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    cluster = {"servers": 1, "trainers": 1, "durability": "log", "log_format": "json"}
    examples = write_counting_examples(tmp_path / "train.parquet", 2_000)
    scheduler = RoleScheduler(write_job(tmp_path, examples, {}, cluster), tmp_path / "state", hold_port())
    try:
        for role in ("coordinator", "server", "trainer"):
            scheduler.start(role)
        scheduler.until(lambda: scheduler.code_of("trainer-0") == 0, "the trainer to be done")
        scheduler.said("coordinator-0", "all work is done")
        for role, rank in (("coordinator", None), ("server", 0), ("trainer", 0)):
            found = records(scheduler.output(f"{role}-0"))
            assert {(one["role"], one["rank"], one["run"]) for one in found} == {(role, rank, "scheduled")}
        assert any(
            one["message"].startswith("examples/s") for one in records(scheduler.output("coordinator-0"))
        )
    finally:
        scheduler.close()
