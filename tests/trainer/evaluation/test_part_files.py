"""Files of results: each is there whole or not at all, and what can't be written is named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import pslib
from launch.cli.main import main
from pslib.errors import ConfigurationError
from pslib.trainer.evaluation.predictions import PartFiles
from rec_models import LR

TABLE = pa.table({"a": [1, 2, 3]})


def clicks(path: Path, rows: int, **more: Any) -> Path:
    pq.write_table(pa.table({"user": [n % 7 for n in range(rows)]} | more), path)
    return path


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, plain = PartFiles("recommend", tmp_path / "out", []), pq.write_table

    def full_disk(table: pa.Table, where: str, filesystem: Any) -> None:
        plain(table, where, filesystem=filesystem)
        raise OSError("no space left\nat all")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(ConfigurationError) as caught:
        files.write_table(3, TABLE)
    (line,) = caught.value.problems
    assert line == f"recommend: {tmp_path}/out/part-000003.parquet can't be written: no space left"
    assert list((tmp_path / "out").glob("*.parquet")) == []
    monkeypatch.setattr(pq, "write_table", plain)
    files.write_table(3, TABLE)
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["part-000003.parquet"]
    assert pq.read_table(tmp_path / "out").equals(TABLE)


def test_of_an_earlier_call_with_more_data_no_part_stays(tmp_path: Path) -> None:
    """Read by name, its rows would look like rows of this call."""
    files = PartFiles("predictions", tmp_path, [])
    for lease in (1, 2, 1000000):
        files.write_table(lease, TABLE)
    for name in ("notes.txt", "part-x.parquet", "part-00003.parquet"):
        (tmp_path / name).touch()
    PartFiles("predictions", tmp_path, []).begin(2)
    left = sorted(one.name for one in tmp_path.iterdir())
    assert left == ["notes.txt", "part-000001.parquet", "part-00003.parquet", "part-x.parquet"]


def test_a_part_that_another_trainer_removes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PartFiles("predictions", tmp_path, [])
    files.write_table(5, TABLE)
    found = files._filesystem.get_file_info(fs.FileSelector(str(tmp_path)))
    (tmp_path / "part-000005.parquet").unlink()

    class Slow:
        delete_file = staticmethod(files._filesystem.delete_file)
        open_input_file = staticmethod(files._filesystem.open_input_file)
        get_file_info = staticmethod(lambda selector: found)

    monkeypatch.setattr(files, "_filesystem", Slow())
    files.begin(1)


def test_a_folder_that_can_not_be_made_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"vectors: .*file/out can't be made: .*; give another fold"):
        PartFiles("vectors", tmp_path / "file" / "out", [])


FOREIGN = "predictions: {} holds part-{:06d}.parquet, which no earlier call of this version wrote: "


def made_by_others(folder: Path, how: str) -> Path:
    """Something with the name of a part file that the library has not written."""
    part = folder / "part-000007.parquet"
    if how == "with a column more":
        PartFiles("predictions", folder, []).write_table(7, TABLE)
        pq.write_table(pq.read_table(part).append_column("b", pa.array([4, 5, 6])), part)
    elif how == "with fewer rows":
        PartFiles("predictions", folder, []).write_table(7, TABLE)
        pq.write_table(pq.read_table(part).slice(1), part)
    elif how == "plain":
        pq.write_table(TABLE, part)
    elif how == "empty":
        part.touch()
    elif how == "folder":
        part.mkdir()
    else:
        os.mkfifo(part)
    return part


@pytest.mark.parametrize("how", ["plain", "with a column more", "with fewer rows", "empty", "folder", "pipe"])
def test_what_others_have_written_is_neither_removed_nor_replaced(tmp_path: Path, how: str) -> None:
    part = made_by_others(tmp_path, how)
    before = (part.stat(), part.read_bytes() if part.is_file() else b"")
    with pytest.raises(ConfigurationError) as told:
        PartFiles("predictions", tmp_path, [])
    advice = "move it away, or give another folder"
    assert told.value.problems == (FOREIGN.format(tmp_path, 7) + advice,)
    assert (part.stat().st_ino, part.stat().st_mtime_ns) == (before[0].st_ino, before[0].st_mtime_ns)
    assert not part.is_file() or part.read_bytes() == before[1]


def test_what_comes_meanwhile_is_not_removed(tmp_path: Path) -> None:
    files = PartFiles("predictions", tmp_path, [])
    pq.write_table(TABLE, tmp_path / "part-000003.parquet")
    with pytest.raises(ConfigurationError, match=r"holds part-000003\.parquet, which no earlier call"):
        files.begin(1)
    assert pq.read_table(tmp_path / "part-000003.parquet").equals(TABLE)


def test_a_folder_that_holds_the_data_is_refused_under_every_name(tmp_path: Path) -> None:
    data, linked, elsewhere = tmp_path / "data", tmp_path / "linked", tmp_path / "elsewhere"
    for folder in (data, elsewhere):
        folder.mkdir()
    clicks(data / "a.parquet", 3)
    linked.symlink_to(data)
    (elsewhere / "a.parquet").symlink_to(data / "a.parquet")
    for read in (
        data,
        data / "a.parquet",
        linked,
        elsewhere,
        f"{data}/*.parquet",
        f"file://{data}/a.parquet",
    ):
        for out in (data, linked, f"{data}/../data/", f"file://{data}"):
            with pytest.raises(ConfigurationError, match=r"predictions: .* holds data that is read: give"):
                PartFiles("predictions", out, [str(read)])
    assert [one.name for one in data.iterdir()] == ["a.parquet"]
    with pytest.raises(ConfigurationError, match="elsewhere holds data that is read"):
        PartFiles("predictions", elsewhere, [str(elsewhere)])
    PartFiles("predictions", data / "scores", [str(data)])


@contextmanager
def trainer_of_clicks() -> Iterator[pslib.Trainer]:
    with pslib.connect() as cluster:
        model = LR(pslib.Schema(label="click", sparse=["user"]))
        yield pslib.Trainer(model, cluster, batch_rows=16, progress=False)


def test_predictions_are_of_the_last_evaluation_alone(tmp_path: Path) -> None:
    many, few = (clicks(tmp_path / f"{n}.parquet", n, click=[n % 2 for n in range(n)]) for n in (600, 40))
    with trainer_of_clicks() as trainer:
        trainer.evaluate(many, predictions=tmp_path / "out")
        assert pq.read_table(tmp_path / "out").num_rows == 600
        trainer.evaluate(few, predictions=tmp_path / "out")
    assert pq.read_table(tmp_path / "out").num_rows == 40


def test_predictions_into_the_data_are_refused_before_the_evaluation(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    before = {clicks(data / f"part-{n:06d}.parquet", 40, click=[0, 1] * 20): n for n in (0, 7)}
    whole = {path: path.read_bytes() for path in before}
    with trainer_of_clicks() as trainer:
        with pytest.raises(ConfigurationError, match=r"predictions: .*data holds data that is read"):
            trainer.evaluate(data, predictions=data)
        assert {path: path.read_bytes() for path in data.iterdir()} == whole
        assert trainer.evaluate(data, predictions=tmp_path / "out").examples == 80


def test_predictions_need_no_label_and_figures_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {
        "data": {"train": "new.parquet", "schema": {"label": "click", "sparse": ["user"]}},
        "model": {"name": "lr"},
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    clicks(tmp_path / "new.parquet", 40)
    with trainer_of_clicks() as trainer:
        trainer.evaluate(clicks(tmp_path / "old.parquet", 40, click=[0, 1] * 20))
        trainer.save(tmp_path / "checkpoint")
    command = ["eval", str(tmp_path / "job.yaml"), "--checkpoint", str(tmp_path / "checkpoint")]
    command += [str(tmp_path / "new.parquet")]
    assert main([*command, "--predictions", str(tmp_path / "scores")]) == 0
    assert capsys.readouterr().out == "examples    40, without a label: no figures\n"
    assert pq.read_table(tmp_path / "scores").column_names == ["prediction"]
    for number, unknown in enumerate((pa.nulls(40), pa.nulls(40, pa.int8()))):
        clicks(tmp_path / "unknown.parquet", 40, click=unknown)
        out = ["--predictions", str(tmp_path / f"unknown {number}")]
        assert main([*command[:-1], str(tmp_path / "unknown.parquet"), *out]) == 0
        assert capsys.readouterr().out == "examples    40, without a label: no figures\n"
    assert main(command) == 64  # who wants to know how good it is needs true labels
    assert "new.parquet: no column 'click'" in capsys.readouterr().err
    clicks(tmp_path / "labelled.parquet", 40, click=[0, 1] * 20)
    both = [*command, str(tmp_path / "labelled.parquet"), "--predictions", str(tmp_path / "more")]
    assert main(both) == 64  # a part of it would count for the figures
    assert "new.parquet: no column 'click'" in capsys.readouterr().err
    assert main([*command[:-1], *both[5:]]) == 0
    assert "(20 positive)" in capsys.readouterr().out
    predicted = [pq.read_table(tmp_path / name)["prediction"].to_pylist() for name in ("scores", "more")]
    assert predicted[0] == predicted[1]
    assert len(predicted[0]) == 40
