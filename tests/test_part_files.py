"""Files of results: each is there whole or not at all, and what can't be written is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import pslib
from launch.cli import main
from pslib.errors import ConfigurationError
from pslib.trainer.predictions import PartFiles
from rec_models import LR

TABLE = pa.table({"a": [1, 2, 3]})


def clicks(path: Path, rows: int, **more: Any) -> Path:
    pq.write_table(pa.table({"user": [n % 7 for n in range(rows)]} | more), path)
    return path


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, plain = PartFiles("recommend", tmp_path / "out"), pq.write_table

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
    for name in (
        "part-000001.parquet",
        "part-000002.parquet",
        "part-1000000.parquet",
        "notes.txt",
        "part-x.parquet",
    ):
        (tmp_path / name).touch()
    PartFiles("predictions", tmp_path).begin(2)
    left = sorted(one.name for one in tmp_path.iterdir())
    assert left == ["notes.txt", "part-000001.parquet", "part-x.parquet"]


def test_a_part_that_another_trainer_removes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PartFiles("predictions", tmp_path)
    (tmp_path / "part-000005.parquet").touch()
    found = files._filesystem.get_file_info(fs.FileSelector(str(tmp_path)))
    (tmp_path / "part-000005.parquet").unlink()

    class Slow:
        delete_file = staticmethod(files._filesystem.delete_file)
        get_file_info = staticmethod(lambda selector: found)

    monkeypatch.setattr(files, "_filesystem", Slow())
    files.begin(1)


def test_a_folder_that_can_not_be_made_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"vectors: .*file/out can't be made: .*; give another fold"):
        PartFiles("vectors", tmp_path / "file" / "out")


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
    command += ["--data", str(tmp_path / "new.parquet")]
    assert main([*command, "--predictions", str(tmp_path / "scores")]) == 0
    assert capsys.readouterr().out == "examples    40, without a label: no figures\n"
    assert pq.read_table(tmp_path / "scores").column_names == ["prediction"]
    assert main(command) == 64  # who wants to know how good it is needs true labels
    assert "new.parquet: no column 'click'" in capsys.readouterr().err
    clicks(tmp_path / "labelled.parquet", 40, click=[0, 1] * 20)
    both = [*command, "--data", str(tmp_path / "labelled.parquet"), "--predictions", str(tmp_path / "more")]
    assert main(both) == 64  # a part of it would count for the figures
    assert "new.parquet: no column 'click'" in capsys.readouterr().err
    assert main([*both[:4], *both[6:]]) == 0
    assert "(20 positive)" in capsys.readouterr().out
    predicted = [pq.read_table(tmp_path / name)["prediction"].to_pylist() for name in ("scores", "more")]
    assert predicted[0] == predicted[1]
    assert len(predicted[0]) == 40
