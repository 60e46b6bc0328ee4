"""Folders of runs: a new run never replaces an earlier one, and a resumed one is found."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from launch.runs.folders import folder_of_run
from launch.supervisor.discovery import note_cluster
from pslib.errors import ConfigurationError
from pslib.monitor.run_folder import NOTE

DONE, INTERRUPTED = 0, 130


def run_in(folder: Path, exit_code: int, begun_s: int) -> Path:
    """The folder of a run that began at that time, and has ended."""
    (folder / "logs").mkdir(parents=True)
    note_cluster(folder / "logs", "tcp://127.0.0.1:5", "abc")
    (folder / "summary.json").write_text(json.dumps({"exit_code": exit_code}))
    os.utime(folder / "logs" / NOTE, (0, begun_s))
    return folder


def chosen(out: Path, overwrite: bool, resume: bool) -> Path:
    """The folder that a launch takes, without a run in it."""
    with folder_of_run(out, overwrite, resume) as folder:
        return folder


def test_a_folder_without_a_run_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "notes.txt").touch()
    for resume in (False, True):
        assert chosen(tmp_path / "clicks", False, resume) == tmp_path / "clicks"


def test_an_earlier_run_stays_and_the_next_one_gets_the_next_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run_in(tmp_path / "clicks", DONE, 1)
    assert chosen(out, False, False) == tmp_path / "clicks-2"
    run_in(tmp_path / "clicks-2", INTERRUPTED, 2)
    assert chosen(out, False, False) == tmp_path / "clicks-3"
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"pslib: {out} holds an earlier run: this one is {out}-2"
    assert second == f"pslib: {out}-2 holds an earlier run: this one is {out}-3"


@pytest.mark.parametrize(("code", "told"), [(INTERRUPTED, True), (DONE, False)])
def test_beside_an_interrupted_run_that_can_go_on_a_new_one_names_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, told: bool
) -> None:
    out = run_in(tmp_path / "clicks", code, 1)
    note = out / "logs" / NOTE
    note.write_text(json.dumps(json.loads(note.read_text()) | {"log": str(out / "log")}))
    os.utime(note, (0, 1))
    assert chosen(out, False, False) == tmp_path / "clicks-2"
    assert ("; --resume goes on with the earlier one" in capsys.readouterr().err) == told


def test_with_overwrite_the_folder_itself_is_taken(tmp_path: Path) -> None:
    out = run_in(tmp_path / "clicks", DONE, 1)
    assert chosen(out, True, False) == out


@pytest.mark.parametrize(
    ("codes", "begun", "found"),
    [
        ((DONE, INTERRUPTED, DONE), (1, 2, 3), "clicks-2"),
        ((INTERRUPTED, INTERRUPTED, DONE), (1, 2, 3), "clicks-2"),
        ((INTERRUPTED, INTERRUPTED, DONE), (2, 1, 3), "clicks"),
        ((DONE, DONE, DONE), (1, 2, 3), "clicks-3"),
    ],
)
def test_a_resume_goes_on_with_the_newest_run_that_is_not_complete_else_with_the_newest(
    tmp_path: Path, codes: tuple[int, ...], begun: tuple[int, ...], found: str
) -> None:
    for number, (code, begun_s) in enumerate(zip(codes, begun, strict=True), 1):
        run_in(tmp_path / ("clicks" if number == 1 else f"clicks-{number}"), code, begun_s)
    assert chosen(tmp_path / "clicks", False, True) == tmp_path / found


def test_a_run_that_was_removed_hides_no_later_one(tmp_path: Path) -> None:
    """Numbers grow: the folder of a removed run is not taken by another."""
    run_in(tmp_path / "clicks-3", INTERRUPTED, 1)
    run_in(tmp_path / "clicks-10", DONE, 2)
    run_in(tmp_path / "clicks-new", INTERRUPTED, 3)
    assert chosen(tmp_path / "clicks", False, True) == tmp_path / "clicks-3"
    assert chosen(tmp_path / "clicks", False, False) == tmp_path / "clicks-11"


@pytest.mark.parametrize("out", [".", "../clicks", "../../runs/clicks/"])
def test_the_current_folder_may_be_that_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(run_in(tmp_path / "runs" / "clicks", DONE, 1))
    assert chosen(Path(out), False, False) == tmp_path / "runs" / "clicks-2"


def test_a_resume_passes_over_a_later_run_that_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    """It failed at its first file, say, and the run before it was interrupted."""
    out = run_in(tmp_path / "clicks", INTERRUPTED, 1)
    note_cluster(out / "logs", "tcp://127.0.0.1:5", "abc", log=str(out / "log"))
    os.utime(out / "logs" / NOTE, (0, 1))
    failed = run_in(tmp_path / "clicks-2", 64, 2)
    assert chosen(out, False, True) == out
    held = os.open(failed, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # as its launcher does: that run is not passed over while it goes on
    assert chosen(out, False, True) == failed
    os.close(held)


def test_of_launches_at_once_each_has_a_folder_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another launch has taken the folder, and has nothing in it yet."""
    out = tmp_path / "clicks"
    for taken, free in ((out, "clicks-2"), (tmp_path / "clicks-2", "clicks-3")):
        taken.mkdir()
        held = os.open(taken, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        assert chosen(out, False, False) == tmp_path / free
        os.close(held)
        if taken == out:
            run_in(out, DONE, 1)
    assert f"pslib: a run begins in {out}: this one is {out}-2" in capsys.readouterr().err


def test_a_chosen_folder_is_held_and_goes_again_if_nothing_is_put_there(tmp_path: Path) -> None:
    with folder_of_run(tmp_path / "runs" / "clicks", False, False) as folder:
        opened = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(opened)
    assert list(tmp_path.iterdir()) == []


def test_two_looks_at_a_folder_do_not_take_each_other_for_a_run(tmp_path: Path) -> None:
    out = run_in(tmp_path / "clicks", DONE, 1)
    look = os.open(out, os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    assert chosen(out, False, False) == tmp_path / "clicks-2"
    os.close(look)


def test_no_run_begins_beside_one_of_its_name_that_goes_on(tmp_path: Path) -> None:
    run_in(tmp_path / "clicks", DONE, 1)
    newest = run_in(tmp_path / "clicks-2", DONE, 2)
    held = os.open(newest, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # as its launcher does
    with pytest.raises(ConfigurationError, match=f"out: a run goes on in {newest}: wait for it, stop it"):
        chosen(tmp_path / "clicks", False, False)
    os.close(held)
    assert chosen(tmp_path / "clicks", False, False) == tmp_path / "clicks-3"


def job_in(folder: Path) -> Path:
    pq.write_table(pa.table({"click": [0, 1, 1], "user": [1, 2, 3]}), folder / "data.parquet")
    plain = {
        "data": {"train": "data.parquet", "schema": {"label": "click", "sparse": ["user"]}},
        "model": {"name": "lr"},
        "out": "run",
    }
    (folder / "job.yaml").write_text(json.dumps(plain))
    return folder / "job.yaml"


def test_a_job_trained_twice_has_two_runs_and_the_folder_of_one_is_enough_to_name_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(job_in(tmp_path))
    assert main(["train", job, "--quiet"]) == 0
    first = (tmp_path / "run" / "summary.json").read_bytes()
    # A checkpoint of the first run may be the beginning of the second.
    assert main(["train", job, "--quiet", "--set", f"load.path={tmp_path}/run/checkpoint"]) == 0
    assert (tmp_path / "run" / "summary.json").read_bytes() == first
    assert json.loads((tmp_path / "run-2" / "summary.json").read_text())["epochs"] == 2
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert "is complete: 1 epoch, " in capsys.readouterr().out
    assert main(["train", str(tmp_path / "run"), "--quiet"]) == 0  # once more, in a folder of its own
    assert f"{tmp_path}/run-2 holds an earlier run: this one is {tmp_path}/run-3" in capsys.readouterr().err
    assert json.loads((tmp_path / "run-3" / "summary.json").read_text())["epochs"] == 1


def test_a_folder_that_holds_no_run_is_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(tmp_path)]) == 64
    assert capsys.readouterr().err == (
        f"pslib: {tmp_path}/job.yaml: no such file; expected a job file (YAML)\n"
    )


def test_a_script_gets_a_folder_of_its_own_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text("import pslib\nwith pslib.connect():\n    pass\n")
    for _ in range(2):
        assert main(["launch", "--quiet", "--out", str(tmp_path / "run"), str(tmp_path / "script.py")]) == 0
    assert {(one / "summary.json").exists() for one in (tmp_path / "run", tmp_path / "run-2")} == {True}
