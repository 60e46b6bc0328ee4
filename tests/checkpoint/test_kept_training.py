"""Trained rows are kept where the data, or a full disk, ends a run later: real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.checkpoint import Manifest, newest, read_manifest
from tests.support.processes.command import ROOT, Command
from tests.support.processes.counting_runs import Start

BATCH_ROWS = 64
ROWS = 6_400


def write(path: Path, rows: int = ROWS, bad: int | None = None, user: pa.DataType | None = None) -> str:
    """Examples with one wrong label, where no statistic of the file tells it, or none; returns the path."""
    random = np.random.default_rng(rows)
    labels = random.integers(0, 2, rows).astype("f4")
    if bad is not None:
        labels[bad] = 0.5
    users = pa.array(random.integers(0, 500, rows)).cast(user or pa.int64())
    pq.write_table(pa.table({"click": labels, "user": users}), path, row_group_size=max(640, rows // 20))
    return str(path)


def job_file(folder: Path, data: dict[str, Any], **sections: Any) -> Path:
    job = {
        "data": data | {"schema": {"label": "click", "sparse": ["user"]}},
        "model": {"name": "fm", "dim": 4},
        "training": {"batch_rows": BATCH_ROWS, "staleness": 0, "seed": 7} | sections.pop("training", {}),
        "out": str(folder / "out"),
        **sections,
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML
    return path


def kept_by(command: Command, said: str) -> tuple[str, list[str]]:
    """The checkpoint that a run which ends with 64 has left, and the command by which it goes on."""
    assert command.finish(120) == 64, command.output
    assert command.lines(said), command.output
    (line,) = command.lines("go on with: pslib ")
    place = newest(str(command.out / "checkpoint-unfinished"))
    assert f"the checkpoint is {place}" in line
    assert "Traceback" not in command.output
    return place, line.split("go on with: pslib ")[1].split()


def go_on(start: Start, arguments: Sequence[str | Path], out: Path) -> Manifest:
    """Run a command to its end; return the manifest of the checkpoint that it leaves."""
    command = start(*arguments, "--quiet")
    assert command.finish(120) == 0, command.output
    return read_manifest(str(out / "checkpoint"))


def recipe_of(command: Command, folder: Path) -> tuple[str, list[str]]:
    """The line of a run that ends with 64, and the command that begins with its checkpoint in a folder."""
    assert command.finish(120) == 64, command.output
    told = command.lines("when the data is mended, begin with it: pslib ")
    assert len(told) == 1, command.output
    line = told[0]
    return line, line.split("begin with it: pslib ")[1].replace("ANOTHER", str(folder)).split()


@pytest.mark.parametrize("trainers", [1, 2])
@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_a_bad_row_of_the_test_data_costs_no_training_and_the_run_goes_on_with_mended_data(
    start: Start, tmp_path: Path, trainers: int, consistency: str
) -> None:
    data = {"train": write(tmp_path / "train.parquet")}
    data["test"] = write(tmp_path / "test.parquet", bad=6_000)
    cluster = {"servers": 2, "trainers": trainers}
    training = {"epochs": 2, "consistency": consistency}
    path = job_file(tmp_path, data, cluster=cluster, training=training)
    place, again = kept_by(start("train", path, "--quiet"), "a label is 0 or 1")
    about, files = read_manifest(place).about, read_manifest(place).files
    assert about["epochs"] == 2
    assert about["steps"] >= 2 * ROWS / BATCH_ROWS / (trainers if consistency == "sync" else 1)
    write(tmp_path / "test.parquet", rows=5_000)
    saved = go_on(start, again, tmp_path / "out")
    assert (saved.about["epochs"], saved.about["steps"]) == (2, about["steps"]), "nothing is trained twice"
    assert [f.rows for f in saved.files] == [f.rows for f in files]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["auc"] > 0


def test_a_run_whose_test_data_is_bad_goes_on_without_any(start: Start, tmp_path: Path) -> None:
    data = {"train": write(tmp_path / "train.parquet")}
    path = job_file(tmp_path, data | {"test": write(tmp_path / "test.parquet", bad=6_000)})
    kept_by(start("train", path, "--quiet"), "a label is 0 or 1")
    saved = go_on(start, ["train", job_file(tmp_path, data), "--resume"], tmp_path / "out")
    assert saved.about["epochs"] == 1


def test_a_file_of_a_stream_that_does_not_fit_costs_nothing_that_was_trained_before(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b"):
        write(folder / f"{name}.parquet", rows=640)
    write(folder / "c.parquet", rows=640, user=pa.string())
    path = job_file(tmp_path, {"train": str(folder), "stream": True}, cluster={"trainers": 2})
    place, again = kept_by(start("train", path, "--quiet"), "c.parquet")
    assert read_manifest(place).about["files"] == ["a.parquet", "b.parquet"]
    (folder / "c.parquet").unlink()
    write(folder / "d.parquet", rows=320)
    (folder / "_STOP").touch()
    about = go_on(start, again, tmp_path / "out").about
    assert (about["files"], about["steps"]) == (["a.parquet", "b.parquet", "d.parquet"], 25)


def test_a_bad_row_of_a_stream_costs_nothing_and_its_file_may_be_taken_away(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", rows=640)
    write(folder / "b.parquet", rows=640, bad=600)
    path = job_file(tmp_path, {"train": str(folder), "stream": True})
    place, again = kept_by(start("train", path, "--quiet"), "a label is 0 or 1")
    assert read_manifest(place).about["files"] == ["a.parquet"]
    (folder / "b.parquet").unlink()
    (folder / "_STOP").touch()
    about = go_on(start, again, tmp_path / "out").about
    assert (about["files"], about["steps"]) == (["a.parquet"], 10)


def late_bad_row(tmp_path: Path, consistency: str, **cluster: Any) -> Path:
    """A job of which the last shuffle window alone has a bad row, and its two trainers."""
    data = {"train": write(tmp_path / "train.parquet", rows=800_000, bad=790_000)}
    training = {"batch_rows": 2048, "consistency": consistency}
    return job_file(tmp_path, data, training=training, cluster={"trainers": 2, **cluster})


@pytest.mark.parametrize("consistency", ["async", "geo"])
def test_a_bad_row_far_down_in_the_data_costs_nothing_that_was_trained_before_it(
    start: Start, tmp_path: Path, consistency: str
) -> None:
    command = start("train", late_bad_row(tmp_path, consistency), "--quiet")
    line, recipe = recipe_of(command, tmp_path / "another")
    place = newest(str(command.out / "checkpoint-unfinished"))
    assert f"the checkpoint is {place}" in line
    assert "; its checkpoint is " in doctor_of(command)
    leases = read_manifest(place).cut["table"]["leases"]
    assert leases["done"] or any(batches for _, batches, _ in leases["begun"])
    write(tmp_path / "train.parquet", rows=100_000)
    assert go_on(start, recipe, tmp_path / "another").about["epochs"] == 1


def test_in_step_what_was_trained_before_a_bad_row_is_not_saved_and_the_run_says_how_to_have_it(
    start: Start, tmp_path: Path
) -> None:
    command = start("train", late_bad_row(tmp_path, "sync"), "--quiet")
    assert command.finish(120) == 64, command.output
    (line,) = command.lines("nothing was saved of what was trained")
    assert "every_batches saves sooner" in line
    assert not command.lines("checkpoint not made"), "no trainer waits for what can't be"


def test_a_run_with_logs_whose_test_data_is_bad_leaves_a_checkpoint_too(start: Start, tmp_path: Path) -> None:
    """Its logs know an evaluation of that data, and go on with no other."""
    data = {"train": write(tmp_path / "train.parquet"), "test": write(tmp_path / "test.parquet", bad=6_000)}
    command = start("train", job_file(tmp_path, data, cluster={"durability": "log"}), "--quiet")
    _, recipe = recipe_of(command, tmp_path / "another")
    write(tmp_path / "test.parquet", rows=5_000)
    saved = go_on(start, recipe, tmp_path / "another")
    assert (saved.about["epochs"], saved.about["steps"]) == (1, 100), "it is not trained again"


def test_test_data_that_is_gone_after_the_training_costs_nothing_of_it(start: Start, tmp_path: Path) -> None:
    data = {"train": write(tmp_path / "train.parquet", rows=400_000)}
    data["test"] = write(tmp_path / "test.parquet")
    command = start("train", job_file(tmp_path, data), "--quiet")
    command.wait_for_file("metrics.jsonl", '"phase": "training"')
    (tmp_path / "test.parquet").unlink()
    place, _ = kept_by(command, "test.parquet")
    assert read_manifest(place).about["epochs"] == 1


def doctor_of(command: Command) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli.main", "doctor", command.out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr
