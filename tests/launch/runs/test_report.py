"""``pslib report``: files of runs of any state, and two runs compared on the same examples."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from launch.job.job import Job, read_job
from launch.runs.report import read_run, read_runs
from launch.worker.train_job import make_trainer, own_cluster
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError
from pslib.monitor.report import page
from pslib.recorder import RunRecorder
from tests.support.job_folder import JOB, refused, save


def records(folder: Path, *, ends: bool = True, **summary: object) -> Path:
    """Write the records of a run into a folder."""
    run = RunRecorder(folder, SystemClock(), progress=False)
    run.observe({"phase": "training", "examples": 100, "loss_sum": 50.0, "epoch": 0})
    if ends:
        run.finish({"phase": "done", "exit_code": 0, **summary})
    run.close()
    return folder


def trained(folder: Path, *overrides: str) -> Job:
    """Train a job in this process and leave what its run would."""
    (folder.parent / "job.yaml").write_text(JOB, encoding="utf-8")
    job = read_job(folder.parent / "job.yaml", overrides, {"out": str(folder)})
    with own_cluster(1) as cluster:
        trainer = make_trainer(job, cluster)
        trainer.fit(job.train_data, epochs=3)
        records(folder)
        trainer.save(folder / "checkpoint")
    (folder / "job.yaml").write_text(job.to_yaml(), encoding="utf-8")
    return job


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Folders of two runs that differ in one setting."""
    home = tmp_path_factory.mktemp("runs")
    save(home, "train.parquet")
    trained(home / "a")
    trained(home / "b", "optimizers.dense={name: Adam, learning_rate: 0.05}")
    return [str(home / name) for name in "ab"]


def test_two_runs_tell_the_setting_that_differs_and_the_difference_of_the_auc_with_its_interval(
    two: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *two, "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr()
    setting, difference, file = said.out.splitlines()
    assert setting == "optimizers.dense.learning_rate: 0.001, 0.05"
    value, _, interval = difference.removeprefix("AUC of b less a: ").partition(" ")
    low, high = (float(one) for one in interval.strip("()").split(" to "))
    assert low <= float(value) <= high
    assert (file, said.err) == (str(tmp_path / "page.html"), "")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"<td>{value}</td>" in page
    assert "<th scope=row>optimizers.dense.learning_rate</th><td>0.001</td><td>0.05</td>" in page


def test_given_predictions_are_compared_and_no_checkpoint_is_evaluated(
    two: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, places in (("a", [0.9, 0.1, 0.8, 0.2]), ("b", [0.1, 0.9, 0.2, 0.8])):
        table = pa.table(
            {"label": pa.array([1, 0, 1, 0], pa.float32()), "prediction": pa.array(places, pa.float32())}
        )
        pq.write_table(table, f"{name}.parquet")
    given = ["--predictions", "a.parquet", "--predictions", "b.parquet"]
    assert main(["report", *two, *given]) == 0
    assert "AUC of b less a: -1.00000" in capsys.readouterr().out
    assert main(["report", *two, *given[:2], "--overwrite"]) == 64
    assert "expected one for each of 2 runs, in their order, got 1" in capsys.readouterr().err
    (line,) = refused(capsys, "report", two[0], *given[:2], "--overwrite")
    assert line == "--predictions: expected two runs or more, to compare them, got one"
    pq.write_table(pa.table({"label": [1.0], "prediction": [0.5]}), "b.parquet")
    (line,) = refused(capsys, "report", *two, *given, "--overwrite")
    assert line.startswith("b: expected predictions of the same 4 examples as the first run's")
    pq.write_table(pa.table({"score": [0.5]}), "b.parquet")
    (line,) = refused(capsys, "report", *two, *given, "--overwrite")
    assert line.startswith("b.parquet: expected Parquet files with label and prediction")


def test_without_a_way_to_compare_the_report_says_how_to_get_one(
    two: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = records(tmp_path / "script", settings={"batch_rows": "64"})
    assert main(["report", two[0], str(script), "--out", str(tmp_path / "page.html")]) == 0
    why, how = capsys.readouterr().err.splitlines()
    assert why.endswith("script is the run of a script, whose test data is not recorded")
    assert "--predictions scores-0 --predictions scores-1 here" in how
    assert main([*re.findall("(eval) RUN FILE (--predictions) (scores-0)", how)[0], "--help"]) == 0
    assert why.removeprefix("pslib: ") in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_run_without_a_checkpoint_is_told_and_the_rest_is_there(
    two: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = records(tmp_path / "other")
    (other / "job.yaml").write_text((Path(two[1]) / "job.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["report", two[0], str(other), "--out", str(tmp_path / "page.html")]) == 0
    assert "has no complete checkpoint of its own" in capsys.readouterr().err
    assert main(["report", *two, "--no-eval", "--overwrite", "--out", str(tmp_path / "page.html")]) == 0
    assert "Checkpoints were not evaluated (--no-eval)." in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_told_in_a_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    lines = refused(capsys, "report", tmp_path, tmp_path / "none", "--out", out)
    assert lines == [
        f"{tmp_path}: expected the folder of a run, with metrics.jsonl, got a folder without it",
        f"{tmp_path / 'none'}: expected the folder of a run, with metrics.jsonl, got nothing there",
    ]
    assert not out.exists()


def test_a_file_that_exists_is_kept_without_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = records(tmp_path / "run"), tmp_path / "page.html"
    out.write_text("mine", encoding="utf-8")
    refused(capsys, "report", run, "--out", out)
    assert out.read_text(encoding="utf-8") == "mine"
    assert main(["report", str(run), "--out", str(out), "--overwrite"]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


# --- files of a run


def test_a_run_of_any_state_is_read(tmp_path: Path) -> None:
    failed = records(tmp_path / "failed", phase="failed", exit_code=69, error="server 1 was killed")
    assert (read_run(failed, "failed").state, read_run(failed, "x").summary["error"]) == (
        "failed", "server 1 was killed"
    )  # fmt: skip
    going = read_run(records(tmp_path / "going", ends=False), "going")
    assert (going.state, going.summary) == ("running, or killed: there is no summary yet", {})
    left = records(tmp_path / "left", phase="interrupted", exit_code=130)
    assert read_run(left, "left").state == "interrupted"


def test_a_run_of_a_launcher_that_is_gone_is_not_said_to_run(tmp_path: Path) -> None:
    killed = records(tmp_path / "killed", ends=False)
    (killed / "logs").mkdir()
    note = {"coordinator": "tcp://127.0.0.1:1", "cluster_id": "a"}
    host = os.uname().nodename
    for pid, state in ((os.getpid(), "its launcher is gone"), (None, "running")):
        launcher = {} if pid is None else {"launcher": {"host": host, "pid": pid, "created_s": 1.0}}
        (killed / "logs" / "cluster.json").write_text(json.dumps(note | launcher), encoding="utf-8")
        assert state in read_run(killed, "killed").state


def test_all_launches_of_a_run_are_drawn(tmp_path: Path) -> None:
    run = records(tmp_path / "run")
    line = {"event": "progress", "seconds": 1.0, "epoch": 0, "examples": 40, "loss": 0.7}
    (run / "metrics-0.jsonl").write_text(json.dumps(line) + "\n{cut", encoding="utf-8")
    assert [one.examples for one in read_run(run, "run").records][:2] == [40, 100]


def test_settings_of_a_script_are_those_of_its_summary(tmp_path: Path) -> None:
    run = records(tmp_path / "run", settings={"batch_rows": "64", "model": "DeepFM"})
    assert read_run(run, "run").settings == {"batch_rows": "64", "model": "DeepFM"}


def test_secrets_of_settings_are_not_shown(tmp_path: Path) -> None:
    run = records(tmp_path / "run")
    (run / "job.yaml").write_text(
        "trackers: {webhook: {url: https://chat/secret}}\ndata: {train: s3://key:word@bucket/x}\n",
        encoding="utf-8",
    )
    settings = read_run(run, "run").settings
    assert settings == {"trackers.webhook.url": "(not shown)", "data.train": "s3://***@bucket/x"}


def test_runs_whose_folders_have_one_name_are_named_by_their_paths(tmp_path: Path) -> None:
    runs = [records(tmp_path / folder / "run") for folder in "ab"]
    assert [one.name for one in read_runs([str(one) for one in runs])] == [str(one) for one in runs]
    assert [one.name for one in read_runs([str(runs[0])])] == ["run"]
    with pytest.raises(ConfigurationError, match="got a file"):
        read_runs([str(runs[0] / "summary.json")])


def test_a_damaged_monitor_file_is_left_out(tmp_path: Path) -> None:
    run = records(tmp_path / "run")
    for text in ("{cut", "[]", '{"state": 7}'):
        (run / "monitor.json").write_text(text, encoding="utf-8")
        assert read_run(run, "run").monitor == {}


@pytest.mark.parametrize(
    "broken", [None, "x", [], [[1]], {"a": []}, 5, 10**400, 1e999], ids=lambda one: repr(one)[:8]
)
def test_files_with_values_of_another_type_give_a_report_and_no_traceback(
    tmp_path: Path, broken: object
) -> None:
    folder = records(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    ends = {"phase": "done", "exit_code": 0, "epochs": 1, "examples": 1}
    (folder / "summary.json").write_text(json.dumps(dict.fromkeys([*summary, "recall"], broken) | ends))
    parts = ("run", "events", "checkpoints", "processes")
    (folder / "monitor.json").write_text(json.dumps({"state": dict.fromkeys(parts, broken)}))
    (run,) = read_runs([str(folder)])
    assert run.summary["exit_code"] == 0
    assert "<td>done</td>" in page([run])
