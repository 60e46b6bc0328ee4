"""``data.test_share``: rows of ``data.train`` are held out, and what does not go with that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.command import read_job_with
from launch.job.compatibility import check_same_training
from launch.job.job import read_job
from launch.job.preflight import check_data
from pslib.errors import ConfigurationError, DataError

ROWS = 1000
SCHEMA = {"label": "click", "sparse": ["user"]}


def job_in(folder: Path, **data: Any) -> Path:
    pq.write_table(
        pa.table({"click": [0, 1] * (ROWS // 2), "user": np.arange(ROWS), "day": np.arange(ROWS) // 10}),
        folder / "a.parquet",
    )
    plain = {"data": {"train": "a.parquet", "schema": SCHEMA} | data, "model": {"name": "lr"}, "out": "run"}
    (folder / "job.yaml").write_text(json.dumps(plain))
    return folder / "job.yaml"


def test_the_last_rows_are_held_out_and_the_others_are_counted_before_a_run(tmp_path):
    assert check_data(read_job(job_in(tmp_path))) == ROWS
    job = read_job(job_in(tmp_path, test_share=0.1, test_by="day"))
    assert check_data(job) == 900
    again = read_job(_written(tmp_path / "effective.yaml", job.to_yaml()))
    assert (again.train_data, again.test_data) == (job.train_data, job.test_data)
    assert job.train_data != job.test_data


def _written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_without_a_share_the_paths_themselves_are_the_data(tmp_path):
    job = read_job(job_in(tmp_path, test="b.parquet"))
    assert (job.train_data, job.test_data) == ([f"{tmp_path}/a.parquet"], [f"{tmp_path}/b.parquet"])
    assert read_job(job_in(tmp_path)).test_data is None


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "data={train: a, test: b, test_share: 0.1, schema: {label: y, sparse: [a]}}",
            "data.test_share: expected 0 with test, which is evaluated in its place; remove one of them",
        ),
        (
            "data={train: a, test_share: 0.1, stream: true, schema: {label: y, sparse: [a]}}",
            "data.test_share: expected 0 with data.stream, each of whose windows is predicted first",
        ),
        ("data.test_share=1", "data.test_share: expected <= 0.99, got 1"),
        ("data.test_share=-0.1", "data.test_share: expected >= 0.0, got -0.1"),
    ],
)
def test_settings_that_do_not_go_together_are_one_line(tmp_path, override, line):
    file = job_in(tmp_path)
    with pytest.raises(ConfigurationError) as error:
        read_job(file, [override])
    assert error.value.problems == (line,)


def test_a_share_of_0_holds_nothing_out_whatever_the_column_of_times_is(tmp_path):
    file = job_in(tmp_path, test_share=0.1, test_by="day")
    job = read_job_with(str(file), [], test_share=0.0)
    assert (job.train_data, job.test_data) == ([f"{tmp_path}/a.parquet"], None)


def test_a_model_of_sessions_needs_test_data_of_its_own(tmp_path):
    file = job_in(tmp_path, test_share=0.1, schema={"label": None, "ragged": ["items"]})
    with pytest.raises(ConfigurationError) as error:
        read_job(file, ["model={name: gru4rec}"])
    assert error.value.problems == (
        "data.test_share: gru4rec is tested on prefixes and their targets; give data.test with both",
    )


@pytest.mark.parametrize(("by", "line"), [("days", "no column 'days'"), ("one", "no later rows to hold out")])
def test_a_split_that_can_not_be_made_is_told_before_a_run(tmp_path, by, line):
    file = job_in(tmp_path, test_share=0.1, test_by=by)
    pq.write_table(pa.table({"click": [0, 1], "user": [1, 2], "one": [1, 1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=line):
        check_data(read_job(file))


def test_a_resumed_run_holds_out_what_the_run_has_held_out(tmp_path):
    file = job_in(tmp_path, test_share=0.1, test_by="day")
    (tmp_path / "run").mkdir()
    _written(tmp_path / "run" / "job.yaml", read_job(file).to_yaml())
    check_same_training(read_job(file), from_logs=False)
    with pytest.raises(ConfigurationError) as error:
        check_same_training(read_job(file, ["data.test_share=0.2", "data.test_by=user"]), from_logs=False)
    share, by = error.value.problems
    assert share == "data.test_share: the run began with 0.1, this job says 0.2; say 0.1"
    assert by.startswith("data.test_by: the run began with day, this job says user; say day, or pslib train")
