"""``--resume`` with other settings than the run began with: refused by name, before its folder is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.cli.main import main
from launch.job.compatibility import check_same_training
from launch.job.job import read_job
from pslib.errors import ConfigurationError
from rec_models import LR


def job_in(folder: Path, **more: Any) -> Path:
    """A job file with its data, in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"click": [0, 1, 1], "price": [1.0, 2.0, 3.0], "user": [1, 2, 3]}), folder / "a.parquet"
    )
    plain: dict[str, Any] = {
        "data": {"train": "a.parquet", "schema": {"label": "click", "dense": ["price"], "sparse": ["user"]}},
        "model": {"name": "deepfm", "dim": 4, "hidden": [8]},
        "training": {"epochs": 100, "batch_rows": 64},
        "out": "run",
    }
    (folder / "job.yaml").write_text(json.dumps(plain | more))
    return folder / "job.yaml"


def begun(folder: Path, *settings: str, **more: Any) -> Path:
    """The same with the run's folder as a launcher has begun it."""
    file = job_in(folder, **more)
    (folder / "run" / "logs").mkdir(parents=True)
    (folder / "run" / "job.yaml").write_text(read_job(file, settings).to_yaml())
    return file


def problems(file: Path, *settings: str, from_logs: bool = False) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refusal:
        check_same_training(read_job(file, settings), from_logs)
    return refusal.value.problems


def test_more_epochs_may_follow_where_each_is_a_call_of_its_own(tmp_path: Path) -> None:
    file = begun(tmp_path, "data.valid=a.parquet")
    more = read_job(file, ["data.valid=a.parquet", "training.epochs=120"])
    check_same_training(more, from_logs=False)
    told = problems(file, "training.epochs=120", "data.valid=null")
    assert [line.split(":")[0] for line in told] == ["data.valid", "training.epochs"]


LOGGED = ("cluster.durability=log",)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("training.epochs=4", "training.epochs: the run began with 100, this job says 4; say 100"),
        ("training.batch_rows=32", "training.batch_rows: the run began with 64, this job says 32; say 64"),
        ("training.seed=1", "training.seed: the run began with 0, this job says 1; say 0"),
        (
            "training.consistency=sync",
            "training.consistency: the run began with async, this job says sync; say async",
        ),
        (
            "training.schedule={name: Cosine, batches: 9}",
            "training.schedule: the run began with none, this job says "
            "{name: Cosine, warmup: 0, floor: 0.0, batches: 9}; say none",
        ),
        ("model.dim=8", "model.dim: the run began with 4, this job says 8; say 4"),
        ("model.hidden=[8, 8]", "model.hidden: the run began with [8], this job says [8, 8]; say [8]"),
        (
            "data.schema.sparse=[price]",
            "data.schema.sparse: the run began with another one than this job's; say that of its job.yaml",
        ),
        (
            "optimizers.dense={name: SGD}",
            "optimizers.dense.name: the run began with Adam, this job says SGD; say Adam",
        ),
        ("data.valid=a.parquet", "data.valid: the run began with none, this job says "),
    ],
)
def test_another_setting_of_the_training_is_named_with_that_of_the_run(
    tmp_path: Path, setting: str, told: str
) -> None:
    file = begun(tmp_path)
    dense = ("data.schema.dense=[]",) if "schema.sparse" in setting else ()
    lines = problems(file, setting, *dense)
    assert any(line.startswith(told) for line in lines), lines
    assert lines[-1].endswith(f", or pslib train --resume {tmp_path}/run")


@pytest.mark.parametrize(
    "setting",
    [
        *("training.staleness=0", "training.compute_threads=1", "training.wire={rows: bfloat16}"),
        *("cluster.servers=3", "cluster.trainers=2", "checkpoint.path=elsewhere", "data.test=a.parquet"),
        *("optimizers.dense={name: Adam, learning_rate: 0.5}", "load={path: elsewhere}", "model.dropout=0.1"),
    ],
)
def test_what_may_differ_is_no_reason_to_refuse(tmp_path: Path, setting: str) -> None:
    check_same_training(read_job(begun(tmp_path), [setting]), from_logs=False)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("optimizers.dense={name: Adam, learning_rate: 0.5}", "optimizers.dense.learning_rate: the run"),
        ("table.storage=bfloat16", "table.storage: the run began with float32, this job says bfloat16"),
        ("load={path: elsewhere}", "load: the run began with "),
    ],
)
def test_a_run_with_logs_must_agree_in_what_its_servers_have_there(
    tmp_path: Path, setting: str, told: str
) -> None:
    assert problems(begun(tmp_path, *LOGGED), *LOGGED, setting, from_logs=True)[0].startswith(told)


def test_steps_of_sync_need_the_trainers_that_they_began_with(tmp_path: Path) -> None:
    file = begun(tmp_path, "training.consistency=sync")
    (line,) = problems(file, "training.consistency=sync", "cluster.trainers=2")
    assert line.startswith("cluster.trainers: the run began with 1, this job says 2; say 1, or pslib train ")


def test_data_that_has_moved_is_the_same_and_other_data_is_not(tmp_path: Path) -> None:
    file = begun(tmp_path)
    (tmp_path / "moved").mkdir()
    shutil.copy(tmp_path / "a.parquet", tmp_path / "moved" / "a.parquet")
    check_same_training(read_job(file, ["data.train=moved/a.parquet"]), from_logs=False)
    shutil.copy(tmp_path / "a.parquet", tmp_path / "b.parquet")
    (line,) = problems(file, "data.train=b.parquet")
    assert line.startswith("data.train: the run began with ")
    (tmp_path / "a.parquet").unlink()  # the types are unknown now
    check_same_training(read_job(file, ["data.train=b.parquet"]), from_logs=False)


def test_where_nobody_knows_what_a_run_began_with_nothing_is_refused(tmp_path: Path) -> None:
    file = begun(tmp_path)
    (tmp_path / "run" / "job.yaml").write_text("of: a later version")
    check_same_training(read_job(file, ["training.epochs=4"]), from_logs=False)
    (tmp_path / "run" / "job.yaml").unlink()
    check_same_training(read_job(file, ["training.epochs=4"]), from_logs=False)


def test_a_refused_resume_leaves_the_runs_own_job_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = begun(tmp_path)
    before = (tmp_path / "run" / "job.yaml").read_bytes()
    assert main(["train", str(file), "--resume", "--set", "training.epochs=4"]) == 64
    assert "training.epochs: the run began with 100, this job says 4" in capsys.readouterr().err
    assert (tmp_path / "run" / "job.yaml").read_bytes() == before


def test_a_checkpoint_of_another_model_is_refused_before_the_job_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where no job file says what the run began with."""
    file = job_in(tmp_path)
    with pslib.connect() as cluster:
        model = LR(pslib.Schema(label="click", dense=["price"], sparse=["user"]))
        pslib.Trainer(model, cluster, progress=False).save(tmp_path / "run" / "checkpoint")
    assert main(["train", str(file), "--resume"]) == 64
    assert str(tmp_path / "run" / "checkpoint") in capsys.readouterr().err
    assert not (tmp_path / "run" / "job.yaml").exists()
