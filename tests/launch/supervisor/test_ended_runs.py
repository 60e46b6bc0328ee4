"""A run that has ended says so, with its result, to a command that asks for its cluster or resumes it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.cli.main import main
from launch.job.job import read_job
from launch.supervisor.discovery import (
    end_line,
    find_cluster,
    from_checkpoint,
    note_cluster,
    note_earlier,
    note_saved,
    what_is_left,
)
from pslib.errors import CheckpointError, UnavailableError
from pslib.monitor.run_folder import NOTE, ended_run
from pslib.trainer.settings import LoadSettings
from rec_models import LR

DONE = {"exit_code": 0, "error": None, "epochs": 2, "examples": 6}
FAILED = {"exit_code": 69, "error": "server 1 is lost", "epochs": 1, "examples": 4}
ENDED_S = 1_800_000_000
"""2027-01-15, 08:00 UTC."""


def run_in(folder: Path, summary: dict[str, object], later_s: float = 60.0) -> Path:
    """A run's folder as a launcher leaves it, ``later_s`` after its start."""
    (folder / "logs").mkdir(parents=True)
    note_cluster(folder / "logs", "tcp://127.0.0.1:5", "abc")
    (folder / "summary.json").write_text(json.dumps(summary))
    os.utime(folder / "logs" / NOTE, (0, ENDED_S - later_s))
    os.utime(folder / "summary.json", (0, ENDED_S))
    return folder


@contextmanager
def trainer_of_clicks() -> Iterator[pslib.Trainer]:
    with pslib.connect() as cluster:
        yield pslib.Trainer(LR(pslib.Schema(label="click", sparse=["user"])), cluster, progress=False)


def test_an_ended_run_tells_when_and_how(tmp_path: Path) -> None:
    ended = ended_run(run_in(tmp_path / "run", DONE))
    assert ended is not None
    when = "ended at 2027-01-15T08:00:00+00:00"
    folder = tmp_path / "run"
    assert end_line(ended) == (
        f"{folder}: that run {when}, done (2 finished epochs, 6 examples); its folder holds no checkpoint"
    )
    (folder / "checkpoint").mkdir()
    assert end_line(ended).endswith("; its folder holds no checkpoint")
    (folder / "checkpoint" / "rows-a.arrow").touch()
    assert ended_run(folder / "logs") == ended


def test_a_run_that_was_started_again_since_has_not_ended(tmp_path: Path) -> None:
    assert ended_run(run_in(tmp_path / "run", DONE, later_s=-1.0)) is None
    assert find_cluster(str(tmp_path / "run"), None) == ("tcp://127.0.0.1:5", "abc")
    assert ended_run(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"exit_code": "soon"}'])
def test_of_a_summary_that_nobody_can_read_nothing_is_said(tmp_path: Path, text: str) -> None:
    summary = run_in(tmp_path / "run", DONE) / "summary.json"
    summary.write_text(text)
    os.utime(summary, (0, ENDED_S))
    assert ended_run(tmp_path / "run") is None
    assert find_cluster(str(tmp_path / "run"), None) == ("tcp://127.0.0.1:5", "abc")


def test_a_run_that_has_ended_before_it_trained_has_no_epochs(tmp_path: Path) -> None:
    ended = ended_run(run_in(tmp_path / "run", {"exit_code": 64, "epochs": None}))
    assert ended is not None
    assert ", exit code 64 (0 finished epochs, 0 examples); its folder holds" in end_line(ended)


@pytest.mark.parametrize(("summary", "code"), [(DONE, 0), (FAILED, 1)])
def test_doctor_tells_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], summary: dict[str, object], code: int
) -> None:
    folder = run_in(tmp_path / "run", summary)
    assert main(["doctor", str(folder)]) == code
    assert "that run ended at 2027-01-15T08:00:00+00:00, " in capsys.readouterr().out
    assert main(["doctor", str(folder), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["ended"]["exit_code"] == summary["exit_code"]


@pytest.mark.parametrize(
    "arguments",
    [["scale", "--servers", "2", "RUN"], ["forget", "3", "--table", "embedding", "--cluster", "RUN"]],
)
def test_nobody_waits_for_a_cluster_that_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    folder = run_in(tmp_path / "run", FAILED)
    assert main([str(folder) if one == "RUN" else one for one in arguments]) == UnavailableError.exit_code
    (line,) = capsys.readouterr().err.splitlines()
    assert ", exit code 69: server 1 is lost (1 finished epoch, 4 examples)" in line
    assert line.endswith("nothing of it runs any more")


def job_in(folder: Path, data: dict[str, object] | None = None, **training: object) -> Path:
    pq.write_table(pa.table({"click": [0, 1, 1], "user": [1, 2, 3]}), folder / "data.parquet")
    schema = {"label": "click", "sparse": ["user"]}
    plain = {
        "data": {"train": "data.parquet", "schema": schema} | (data or {}),
        "model": {"name": "lr"},
        "training": {"epochs": 2} | training,
        "out": "run",
    }
    (folder / "job.yaml").write_text(json.dumps(plain))
    return folder / "job.yaml"


def test_a_complete_run_is_not_trained_again_by_resuming_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_in(tmp_path / "run", DONE)
    assert main(["train", str(job_in(tmp_path)), "--resume"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "is complete: 2 epochs, ended at 2027-01-15T08:00:00+00:00; its checkpoint is" in line
    assert "to train N epochs more: pslib train CONFIG --set load.path=" in line
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == DONE


def test_a_complete_run_is_not_made_longer_by_resuming_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_in(tmp_path / "run", DONE)
    assert main(["train", str(job_in(tmp_path, epochs=3)), "--resume"]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert "--resume: expected at most the epochs that were planned" in line
    assert "to train N epochs more: " in line


def test_a_run_that_began_with_a_checkpoint_is_not_made_longer_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its epochs are those of the whole training; how many it was to add stands in its effective job file."""
    folder = run_in(tmp_path / "run", DONE | {"epochs": 4})
    (folder / "job.yaml").write_text('{"training": {"epochs": 2}}')
    assert main(["train", str(job_in(tmp_path, epochs=3)), "--resume"]) == 64
    assert "expected at most the epochs that were planned" in capsys.readouterr().err


def test_a_run_that_may_stop_early_is_complete_with_fewer_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_in(tmp_path / "run", DONE)
    job = job_in(tmp_path, {"valid": "data.parquet"}, epochs=9, stopping={"patience": 1})
    assert main(["train", str(job), "--resume"]) == 0
    assert "is complete: 2 epochs, " in capsys.readouterr().out


def test_the_epochs_of_all_launches_count_where_the_checkpoint_knows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, folder = job_in(tmp_path, epochs=5), run_in(tmp_path / "run", DONE)
    with trainer_of_clicks() as trainer:
        trainer.fit(tmp_path / "data.parquet", epochs=5)
        trainer.save(folder / "checkpoint")
    assert main(["train", str(job), "--resume"]) == 0
    assert "is complete: 5 epochs, " in capsys.readouterr().out


def test_a_stream_that_has_ended_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_in(tmp_path / "run", DONE)
    (tmp_path / "incoming").mkdir()
    job = job_in(tmp_path, {"train": "incoming", "stream": {"window_files": 1}}, epochs=1)
    assert main(["train", str(job), "--resume"]) == 64
    said = capsys.readouterr().err
    assert "--resume: nothing to go on from" in said
    assert "begin anew without --resume" in said


@pytest.mark.parametrize("where", ["run/checkpoint-unfinished/checkpoint-000001", "run/checkpoint"])
def test_a_run_never_goes_on_with_a_checkpoint_that_was_there_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    file = job_in(tmp_path)
    with trainer_of_clicks() as trainer:
        trainer.save(tmp_path / where)
        job, out = read_job(file), tmp_path / "run"
        (out / "logs").mkdir(exist_ok=True)
        assert from_checkpoint(job).load == LoadSettings(path=str(tmp_path / where))
        note_earlier(job, out)
        with pytest.raises(CheckpointError) as refusal:
            from_checkpoint(job)
        assert f"nothing to go on from: {tmp_path / where} was saved by an earlier run, at " in str(
            refusal.value
        )
        assert "to begin with it, say load.path; begin anew without --resume" in str(refusal.value)
        assert (tmp_path / where / "manifest.json").exists()
        trainer.save(tmp_path / where)
        assert from_checkpoint(job).load == LoadSettings(path=str(tmp_path / where))


def test_a_checkpoint_at_a_path_that_other_runs_have_too_is_a_runs_own_only_where_it_has_noted_it(
    tmp_path: Path,
) -> None:
    """A stream that is done goes on with its last checkpoint there, as long as no other run replaces it."""
    job, out = read_job(job_in(tmp_path), ["checkpoint.path=saved"]), run_in(tmp_path / "run", DONE)
    with trainer_of_clicks() as trainer:
        trainer.save(tmp_path / "saved")
        with pytest.raises(CheckpointError, match=f"{tmp_path}/saved was saved by another run, at "):
            from_checkpoint(job)
        note_saved(job, out)
        assert from_checkpoint(job).load == LoadSettings(path=str(tmp_path / "saved"))
        trainer.save(tmp_path / "saved")
        with pytest.raises(CheckpointError, match="was saved by another run"):
            from_checkpoint(job)


def test_a_run_that_replaces_another_one_leaves_its_checkpoint_and_does_not_resume_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_in(tmp_path)
    settings = ["--set", "checkpoint.path=saved"]
    assert main(["train", str(job), *settings]) == 0
    first = (tmp_path / "saved" / "manifest.json").read_bytes()
    interrupted = json.loads(job.read_text())
    interrupted["data"]["train"] = "other.parquet"
    bad = pa.table({"click": [0, 1, 7], "user": [1, 2, 3]})  # only a reader of all of it sees that
    pq.write_table(bad, tmp_path / "other.parquet", row_group_size=2, write_statistics=False)
    job.write_text(json.dumps(interrupted))
    settings += ["--set", "training.consistency=sync"]  # in a fit of which nothing is saved as it ends
    assert main(["train", str(job), *settings, "--overwrite"]) != 0, "its data end it before it saves"
    assert (tmp_path / "saved" / "manifest.json").read_bytes() == first
    assert "pslib: its records: picture " in capsys.readouterr().err
    pq.write_table(pa.table({"click": [0, 1, 1], "user": [1, 2, 3]}), tmp_path / "other.parquet")
    assert main(["train", str(job), *settings, "--resume"]) == 64
    assert "saved was saved by another run, at " in capsys.readouterr().err


def test_a_run_that_failed_and_left_nothing_is_told_what_would_have_saved_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_in(tmp_path / "run", FAILED)
    never = ["--set", "checkpoint.every_s=0"]
    assert main(["train", str(job_in(tmp_path)), "--resume", *never]) == 64
    said = capsys.readouterr().err
    assert "--resume: nothing to go on from" in said
    assert "(checkpoint.every_s or every_batches saves while a run goes on)" in said
    assert main(["train", str(job_in(tmp_path)), "--resume"]) == 64
    assert "(a smaller checkpoint.every_s or every_batches saves sooner)" in capsys.readouterr().err


def test_resuming_a_run_that_was_never_begun_says_to_begin_it_plainly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(job_in(tmp_path)), "--resume"]) == 64
    assert "begin anew without --resume (" in capsys.readouterr().err


def test_a_run_without_logs_goes_on_from_its_checkpoint_also_where_it_has_logs_from_then_on(
    tmp_path: Path,
) -> None:
    """The run began anew in an empty cluster, and replaced its checkpoint at the end."""
    job, folder = job_in(tmp_path, epochs=1), run_in(tmp_path / "run", FAILED)
    with trainer_of_clicks() as trainer:
        trainer.fit(tmp_path / "data.parquet")
        trainer.save(folder / "checkpoint")
    assert main(["train", str(job), "--resume", "--set", "cluster.durability=log"]) == 0
    assert json.loads((folder / "summary.json").read_text())["epochs"] == 2
    assert json.loads((folder / "logs" / NOTE).read_text())["log"] == str(folder / "log")


def test_a_run_with_logs_says_how_it_goes_on_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that it must begin anew: what its servers have acknowledged is there."""
    folder = run_in(tmp_path / "run", FAILED)
    (tmp_path / "log").mkdir()
    note_cluster(folder / "logs", "tcp://127.0.0.1:5", "abc", 0, str(tmp_path / "log"))
    job = job_in(tmp_path)
    (folder / "job.yaml").write_text(read_job(job, ["cluster.durability=disk"]).to_yaml())
    assert main(["train", str(job), "--resume"]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"pslib: --resume: this run has logs, {tmp_path / 'log'}: add --set cluster.durability=disk, or "
        f"pslib train --resume {folder}"
    )
    (tmp_path / "log").rmdir()
    assert main(["train", str(job), "--resume"]) == 64
    assert "--resume: nothing to go on from" in capsys.readouterr().err


def test_the_logs_of_a_script_are_not_denied_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, script = run_in(tmp_path / "run", FAILED), tmp_path / "script.py"
    script.touch()
    note_cluster(folder / "logs", "tcp://127.0.0.1:5", "abc", 0, str(tmp_path))
    assert main(["launch", "--resume", "--out", str(folder), str(script)]) == 64
    assert capsys.readouterr().err == (
        f"pslib: --resume: this run has logs, {tmp_path}: add --durability log\n"
    )


def test_resuming_a_run_that_goes_on_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_in(tmp_path / "run", FAILED, later_s=-1.0)
    job = job_in(tmp_path)
    other = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as its launcher holds it
        assert main(["train", str(job), "--resume"]) == 64
    finally:
        os.close(other)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pslib: --resume: the run in {folder} goes on: wait for it, or end it first; ")
    assert main(["train", str(job), "--resume"]) == 64
    assert "--resume: nothing to go on from" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "launch"])
def test_a_run_is_gone_on_with_or_replaced_and_not_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    folder = run_in(tmp_path / "run", FAILED)
    assert main([command, "--resume", "--overwrite", "--out", str(folder), str(job_in(tmp_path))]) == 64
    assert "--overwrite is not allowed with --resume" in capsys.readouterr().err
    assert (folder / "summary.json").exists()


def test_what_an_ended_run_has_left_is_what_a_resume_would_begin_with(tmp_path: Path) -> None:
    """Checkpoints are found in any place that the job file names, and only complete ones count."""
    file, folder = job_in(tmp_path), run_in(tmp_path / "run", FAILED)
    (folder / "job.yaml").write_text(read_job(file).to_yaml())
    assert what_is_left(folder, done=False) == "it left no checkpoint"
    with trainer_of_clicks() as trainer:
        for place in ("run/checkpoint-unfinished/checkpoint-000001", "elsewhere", "run/checkpoint"):
            setting = ["checkpoint.path=elsewhere"] if place == "elsewhere" else []
            (folder / "job.yaml").write_text(read_job(file, setting).to_yaml())
            shutil.rmtree(folder / "checkpoint-unfinished", ignore_errors=True)
            trainer.save(tmp_path / place)
            note_saved(read_job(folder / "job.yaml"), folder)
            assert what_is_left(folder, done=True) == f"its checkpoint is {tmp_path / place}"
    ended = ended_run(folder)
    assert ended is not None
    assert end_line(ended).endswith(f"; its checkpoint is {folder / 'checkpoint'}")
    rows = next((folder / "checkpoint").glob("*.arrow"))
    rows.unlink()
    assert what_is_left(folder, done=True) == (
        f"its checkpoint {folder / 'checkpoint'} is damaged: {rows.name} is missing"
    )
    (folder / "checkpoint" / "manifest.json").unlink()
    assert what_is_left(folder, done=True).startswith(f"its checkpoint {folder / 'checkpoint'} is incomplete")
    note_cluster(folder / "logs", "tcp://127.0.0.1:5", "abc", 0, str(tmp_path))
    logs = f"all that was acknowledged is in its logs, {tmp_path}; "
    assert what_is_left(folder, done=False).startswith(logs)
