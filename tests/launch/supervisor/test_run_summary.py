"""The figures of a finished run: what `summary.json` holds, and its last lines."""

import errno
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from launch.supervisor import run_records
from launch.supervisor.run_records import records_line, summary_lines, summary_of
from launch.supervisor.run_spec import Outcome, Plan
from pslib.config import ClusterConfig
from pslib.recorder import RunRecorder, recorder

STATUS = {
    "examples": 1000,
    "seconds": 9.0,
    "rows": 50,
    "pushes_sent": 10,
    "pushes_applied": 10,
    "staleness_sum": 15,
    "staleness_count": 10,
    "staleness_max": 2,
    "between_sum": 30,
    "between_count": 12,
    "between_max": 7,
    "servers": 0,
    "trainers": 0,
    "fit_seconds": 4.0,  # there were more fits before those that are told
    "epoch": 5,
    "epochs": 9,
    "results": [
        {"kind": "fit", "seconds": 1.5},
        {"kind": "evaluate", "seconds": 1, "auc": 0.6, "logloss": 0.5, "calibration": 1.0},
        {"kind": "fit", "seconds": 0.5},
        {"kind": "evaluate", "seconds": 1, "auc": 0.7, "logloss": 0.4, "calibration": 1.1},
        {"kind": "save", "seconds": 3},
    ],
}


def test_the_summary_counts_training_time_alone_and_the_processes_that_were_there():
    summary = summary_of(STATUS, [], ClusterConfig(servers=2, trainers=3))
    assert (summary["auc"], summary["logloss"], summary["calibration"]) == (0.7, 0.4, 1.1)
    assert (summary["examples_per_s"], summary["seconds"], summary["epochs"]) == (250.0, 9.0, 5)
    assert (summary["servers"], summary["trainers"], summary["staleness_mean"]) == (2, 3, 1.5)
    assert (summary["pushes_between_mean"], summary["pushes_between_max"]) == (2.5, 7)


def test_the_test_data_counts_and_not_the_last_validation():
    tested = {"auc": 0.9, "logloss": 0.1, "calibration": 1.0}
    results = [{"trainer": 0, "test": None}, {"trainer": 1, "test": tested}]
    assert summary_of(STATUS, results, ClusterConfig())["auc"] == 0.9


def test_a_run_that_never_began_has_a_summary_too():
    summary = summary_of({}, [], ClusterConfig())
    assert (summary["auc"], summary["examples"], summary["examples_per_s"]) == (None, 0, 0.0)
    assert (summary["staleness_mean"], summary["pushes_between_mean"], summary["pushes_between_max"]) == (
        0,
        0,
        0,
    )


def test_the_last_lines_tell_what_limits_and_policies_did_to_the_table(tmp_path):
    did = {"memory_bytes": 8_400_000, "memory_limit_bytes": 16_000_000, "maintained": 5}
    did |= {"narrow_rows": 9277, "evicted_age": 2121, "evicted_share": 7}
    lines = summary_lines(summary_of(STATUS | did, [], ClusterConfig()), tmp_path)
    assert "tables        8.4 of 16.0 MB" in lines
    told = "policies      9,277 narrow rows, 2,121 left by age, 7 left at the limit; 5 maintenances"
    assert told in lines


def test_a_table_without_limit_and_policies_takes_no_line_at_the_end(tmp_path):
    lines = summary_lines(summary_of(STATUS, [], ClusterConfig()), tmp_path)
    assert [line for line in lines if line.startswith(("tables", "policies"))] == []


def test_the_last_lines_show_the_best_possible_beside_the_reached(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({}))
    lines = summary_lines(summary_of(STATUS, [], ClusterConfig()), tmp_path, {"auc": 0.83, "logloss": 0.4})
    assert lines[0] == "AUC           0.7000 (best possible 0.8300)"
    assert lines[-1] == f"summary       {tmp_path}/summary.json"


def test_a_run_that_is_not_done_says_where_what_it_has_written_is(tmp_path):
    assert records_line(tmp_path) == ""
    for name in ("summary.json", "metrics.jsonl", "run.png"):
        (tmp_path / name).touch()
    assert records_line(tmp_path) == (
        f"picture {tmp_path}/run.png, metrics {tmp_path}/metrics.jsonl, summary {tmp_path}/summary.json"
    )


def test_the_last_lines_name_files_as_one_may_type_them_where_one_is(tmp_path, monkeypatch):
    summary, out, elsewhere = summary_of(STATUS, [], ClusterConfig()), tmp_path / "runs", tmp_path / "jobs"
    for folder in (out / "checkpoint", elsewhere):
        folder.mkdir(parents=True)
    for here, named in ((tmp_path, "runs/checkpoint"), (elsewhere, f"{out}/checkpoint")):
        monkeypatch.chdir(here)
        assert summary_lines(summary, out)[-1] == f"checkpoint    {named}"


SAVED = "runs/a/checkpoint"


def records_of(exit_code, out, monkeypatch):
    """The outcome and the summary of a run that ends at once."""
    monkeypatch.setattr(
        run_records,
        "run_cluster",
        lambda *_, **__: Outcome(exit_code, status=STATUS | {"phase": "done", "saved": SAVED}),
    )
    plan = Plan(ClusterConfig(), "a", trainer_arguments=(), logs=out / "logs")
    return run_records.run_recorded(None, plan, out, progress=False, facts={})


@pytest.mark.parametrize(
    ("exit_code", "phase"),
    [(0, "done"), (75, "preempted"), (130, "interrupted"), (64, "failed"), (69, "failed")],
)
def test_a_summary_says_done_of_a_run_that_is_and_of_no_other(exit_code, phase, tmp_path, monkeypatch):
    """The coordinator, source of all other figures, counts every process that leaves in order as done."""
    _, summary = records_of(exit_code, tmp_path, monkeypatch)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert (summary["exit_code"], summary["phase"]) == (exit_code, phase)


def test_the_picture_of_a_resumed_run_has_the_records_of_all_its_launches(tmp_path, monkeypatch):
    for launch in range(11):
        line = {"event": "progress", "seconds": 1.0, "epoch": 0, "examples": launch}
        (tmp_path / f"metrics-{launch}.jsonl").write_text(json.dumps(line) + "\n")
    drawn = []
    monkeypatch.setattr(recorder, "picture", lambda launches, summary: drawn.append(launches) or Mock())
    records_of(0, tmp_path, monkeypatch)
    (launches,) = drawn
    assert [launch[0].examples for launch in launches] == [*range(11), STATUS["examples"]]


@pytest.mark.parametrize("broken", ["metrics.jsonl", "summary.json"])
def test_a_disk_that_is_full_at_the_end_adds_no_line_to_what_ended_the_run(broken, tmp_path, monkeypatch):
    """For a run that is done the full disk is the only error, and is reported with its place."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    if broken == "summary.json":
        monkeypatch.setattr(Path, "write_text", full)
    else:
        monkeypatch.setattr(RunRecorder, "_write", full)
    outcome, summary = records_of(69, tmp_path, monkeypatch)
    assert (outcome.exit_code, summary["phase"], summary["examples"]) == (69, "failed", 1000)
    with pytest.raises(OSError, match="No space left") as refused:
        records_of(0, tmp_path, monkeypatch)
    assert refused.value.filename == str(tmp_path)
    assert refused.value.strerror == (
        "No space left on device; the training is done and its checkpoint runs/a/checkpoint is complete, but "
        "summary.json and run.png were not written: make space, and pslib eval gives the figures again"
    )


def test_a_run_that_is_done_is_done_though_its_picture_found_no_space(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunRecorder, "_draw", full)
    outcome, summary = records_of(0, tmp_path, monkeypatch)
    assert (outcome.exit_code, summary["phase"]) == (0, "done")
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    line = f"pslib: {tmp_path}: No space left on device: run.png was not written; all else is there"
    assert capsys.readouterr().err.splitlines() == [line]


def test_a_run_that_is_asked_to_leave_between_two_looks_tells_one_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_all: object, observe, **_more: object) -> Outcome:
        observe(STATUS | {"phase": "training", "examples": 900, "examples_total": 5000})
        last = STATUS | {"phase": "done", "examples": 1234, "examples_total": 5000, "pushes_sent": 12}
        return Outcome(75, [], last, None)

    monkeypatch.setattr(run_records, "run_cluster", run)
    plan = Plan(ClusterConfig(), "demo", (), tmp_path)
    _outcome, summary = run_records.run_recorded(None, plan, tmp_path, progress=True, facts={})  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    last = next(line for line in reversed(lines) if line["event"] == "progress")
    assert (summary["examples"], last["examples"], last["phase"]) == (1234, 1234, "preempted")
    assert (summary["pushes_sent"], last["pushes_sent"]) == (12, 12)
    assert "preempted, 1,234 of 5,000 examples" in capsys.readouterr().err
