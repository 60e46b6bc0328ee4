"""Addresses of the processes' metrics: what workers say, and the file that Prometheus reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.places.identity import ProcessIdentity
from launch.places.local import LocalLauncher
from launch.runs.role import _metrics_address
from launch.supervisor.discovery import note_targets
from launch.supervisor.process import Starts
from launch.supervisor.run_spec import MetricsPlan, Plan, Task
from launch.supervisor.worker_output import WorkerOutput
from launch.worker.log_lines import read_lines
from pslib.config import ClusterConfig


def silent() -> WorkerOutput:
    return WorkerOutput(echo=False, trainers=2, say=lambda _line: None)


def test_a_process_that_comes_back_replaces_its_address() -> None:
    output = silent()

    def hear(task: Task, port: int) -> None:
        (entry,) = read_lines(f"pslib-metrics 127.0.0.1:{port}")
        output.hear(task, entry)

    hear(Task("server", 1), 4001)
    hear(Task("coordinator", 0), 4002)
    hear(Task("server", 1, ("--generation", "1")), 4003)
    output.take_in()
    assert output.metrics == {"server 1": "127.0.0.1:4003", "coordinator": "127.0.0.1:4002"}


def test_the_file_has_the_format_of_file_sd_and_is_replaced_at_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics_targets.json"
    for port in (1, 2):
        note_targets(file, {"trainer 0": f"127.0.0.1:{port}", "coordinator": "127.0.0.1:9"})
    assert json.loads(file.read_text()) == [
        {"targets": ["127.0.0.1:9"], "labels": {"process": "coordinator"}},
        {"targets": ["127.0.0.1:2"], "labels": {"process": "trainer 0"}},
    ]
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    note_targets(tmp_path / "file" / "metrics_targets.json", {"coordinator": "127.0.0.1:9"})
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("role", "address"), [("coordinator", "tcp://127.0.0.1:9100"), ("server", "tcp://127.0.0.1:0")]
)
def test_the_coordinator_takes_the_port_and_others_free_ones(role: str, address: str, tmp_path: Path) -> None:
    metrics = MetricsPlan(9100, tmp_path / "metrics_targets.json")
    plan = Plan(ClusterConfig(), "run-7", (), tmp_path, metrics=metrics)
    starts = Starts(LocalLauncher(1), plan, {}, silent(), lambda _task: 0, lambda _line: None)
    assert starts._metrics_address(Task(role, 0), metrics) == address


@pytest.mark.parametrize(
    ("role", "coordinator", "listen", "address"),
    [
        ("server", "tcp://10.0.0.1:7077", "tcp://10.0.0.2:7078", "tcp://10.0.0.2:9100"),
        ("trainer", "tcp://127.0.0.1:7077", "", "tcp://127.0.0.1:9100"),
        ("trainer", "tcp://10.0.0.1:7077", "", "tcp://[::]:9100"),
    ],
)
def test_a_process_of_a_scheduler_serves_metrics_where_it_listens(
    role: str, coordinator: str, listen: str, address: str
) -> None:
    assert _metrics_address(ProcessIdentity(role, 0, coordinator, "run-7", listen, ()), 9100) == address
