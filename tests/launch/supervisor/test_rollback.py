"""``recovery: rollback``: a lost server takes all back to the last checkpoint, and the run ends in order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.job.job import Job, read_job, unfinished_place
from launch.supervisor.resume import goes_back, step_back
from launch.supervisor.run_spec import Identity, Outcome, Plan
from pslib.storage import parent_and_name
from tests.support.processes.counting_runs import ROWS, Start, write_counting_examples, write_job
from tests.support.waiting import wait_until


def job_of(folder: Path, epochs: int = 3, checkpoint: object = None, **cluster: object) -> Job:
    examples = write_counting_examples(folder / "examples.parquet")
    training = {"batch_rows": 64, "epochs": epochs}
    recovers = {"servers": 2, "trainers": 2, "recovery": "rollback", **cluster}
    path = write_job(folder, examples, training, recovers)
    if checkpoint:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"checkpoint": checkpoint}))
    return read_job(path)


@pytest.mark.parametrize(
    ("changes", "code", "tried", "back"),
    [
        ({}, 69, 0, True),
        ({}, 69, 3, False),
        ({}, 64, 0, False),
        ({"restarts": 0}, 69, 0, False),
        ({"recovery": "log"}, 69, 0, False),
    ],
)
def test_only_a_lost_peer_takes_a_run_back_and_not_for_ever(
    tmp_path: Path, changes: dict[str, object], code: int, tried: int, back: bool
) -> None:
    assert goes_back(Outcome(code), job_of(tmp_path, **changes), tried) == back


def test_a_run_that_would_only_end_so_again_does_not_go_back(tmp_path: Path) -> None:
    assert not goes_back(Outcome(69, final=True), job_of(tmp_path), 0)


@pytest.mark.parametrize("saved", ["", "/runs/a/checkpoint-7"])
def test_the_next_attempt_loads_the_last_checkpoint_and_is_another_cluster(
    tmp_path: Path, saved: str
) -> None:
    job = job_of(tmp_path, durability="log")
    plan = Plan(job.cluster_config, "a", (), tmp_path, log=str(tmp_path / "log"), launch=Identity("a"))
    again, then = step_back(Outcome(69, status={"saved": saved}), job, plan, tmp_path, 0)
    assert (again.load.path if again.load else "") == saved
    assert then.cluster_id != "a"
    assert then.log == str(tmp_path / "log/back-1")
    assert read_job(tmp_path / "job.yaml").load == again.load


@pytest.mark.parametrize("saved", ["run", "run/checkpoint-000002", "unfinished"])
def test_keys_that_a_status_does_not_tell_are_those_of_the_job(tmp_path: Path, saved: str) -> None:
    store = "s3://{}@bucket/{}?endpoint_override=host:1&scheme=http"
    keep_last = {"keep_last": 3} if "/" in saved else {}
    job = job_of(tmp_path, checkpoint={"path": store.format("KEY:SECRET", "run"), **keep_last})
    if saved == "unfinished":
        saved = f"{parent_and_name(unfinished_place(job))[1]}/checkpoint-000001"
    plan = Plan(job.cluster_config, "a", (), tmp_path, launch=Identity("a"))
    told = Outcome(69, status={"saved": store.format("***", saved)})
    again, _then = step_back(told, job, plan, tmp_path, 0)
    assert again.load is not None
    assert again.load.path == store.format("KEY:SECRET", saved)


def test_a_killed_server_takes_the_run_back_and_it_ends_in_order(start: Start, tmp_path: Path) -> None:
    job_of(tmp_path)
    command = start("train", tmp_path / "job.yaml", "--quiet")
    metrics = tmp_path / "out" / "metrics.jsonl"
    wait_until(
        lambda: metrics.exists() and "examples" in metrics.read_text(),
        40,
        lambda: f"trained examples:\n{command.output}",
    )
    command.kill("server 1")
    command.wait_for("all processes begin again at the beginning: there is no checkpoint (1 of 3)")
    assert command.finish(60) == 0, command.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["examples"], summary["exit_code"]) == (3 * ROWS, 0)
    assert summary["pushes_sent"] == summary["pushes_applied"] > 0
    assert (tmp_path / "out" / "metrics-0.jsonl").exists()
    assert "Traceback" not in command.output


def test_a_killed_server_takes_the_run_back_to_its_last_checkpoint_and_nothing_counts_twice(
    start: Start, tmp_path: Path
) -> None:
    """Training continues with what the checkpoint lacks: to the last batch, and no batch more."""
    epochs = 8  # 6 s and more, of which a test that has no core may miss some before it kills
    job_of(tmp_path, epochs, {"every_s": 0.3, "keep_last": 1000})
    command = start("train", tmp_path / "job.yaml", "--quiet")
    command.wait_for("saved ", 60)
    command.kill("server 1")
    command.wait_for("all processes begin again at", 60)
    assert command.finish(120) == 0, command.output
    (line,) = command.lines("all processes begin again at")
    load = read_job(tmp_path / "out" / "job.yaml").load
    assert load is not None
    assert load.path in line
    table = json.loads((Path(load.path) / "manifest.json").read_text())["cut"]["table"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert table["leases"]["done"] or table["leases"]["begun"]
    assert summary["pushes_sent"] == summary["pushes_applied"] < epochs * -(-ROWS // 64)
    assert "Traceback" not in command.output
