"""A model is not measured, by mistake, on rows that its training has seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.cli.main import main
from pslib.data.split import DataPart
from pslib.errors import ConfigurationError
from rec_models import LR
from tests.support.job_folder import refused

ROWS = 400
SCHEMA = pslib.Schema(label="click", sparse=["user"])


def clicks(seed: int = 1) -> pa.Table:
    random = np.random.default_rng(seed)
    columns = {"click": random.integers(0, 2, ROWS), "user": random.integers(0, 20, ROWS)}
    return pa.table(columns | {"time": random.permutation(ROWS)})


def held_out(data: object, share: float, by: str | None = None) -> DataPart:
    return pslib.split(data, share, by=by)[1]


def job_file(folder: Path) -> Path:
    """Write a job whose data are held out by time, and a checkpoint of its training."""
    pq.write_table(clicks(), folder / "clicks.parquet")
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(LR(SCHEMA), cluster, batch_rows=16, progress=False)
        trainer.fit(pslib.split(folder / "clicks.parquet", 0.2, by="time")[0])
        trainer.save(folder / "checkpoint")
    schema = {"label": "click", "sparse": ["user"]}
    data = {"train": "clicks.parquet", "schema": schema, "test_share": 0.2, "test_by": "time"}
    (folder / "job.yaml").write_text(json.dumps({"data": data, "model": {"name": "lr"}}))
    return folder / "job.yaml"


def test_an_evaluation_on_rows_that_another_split_has_trained_on_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", job_file(tmp_path), "--checkpoint", tmp_path / "checkpoint"]
    seen = "test_share: expected rows that were not trained on, got "
    of_these = "of which the training held out 0.2 of them, the last by time; test on those, or on other data"
    assert refused(capsys, *command, "--set", "data.test_share=0.3") == [
        f"{seen}0.3 of these data, the last by time, {of_these}"
    ]
    assert refused(capsys, *command, "--set", "data.test_by=") == [
        f"{seen}0.2 of these data, drawn by a hash, {of_these}"
    ]
    for share, examples in ((0.2, 80), (0.1, 40)):  # what was held out, and the later half of it
        words = [*map(str, command), "--set", f"data.test_share={share}", "--json"]
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["examples"] == examples


def test_no_model_is_measured_on_a_part_of_data_that_it_was_trained_on_as_a_whole(tmp_path: Path) -> None:
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(LR(SCHEMA), cluster, batch_rows=16, progress=False)
        trainer.fit(clicks())
        with pytest.raises(ConfigurationError, match="held out none of them; test on other data"):
            trainer.evaluate(held_out(clicks(), 0.1))
        assert trainer.evaluate(held_out(clicks(seed=2), 0.1)).examples < ROWS
        assert trainer.evaluate(clicks()).examples == ROWS  # chosen by hand
        trainer.save(tmp_path / "checkpoint")
    model = pslib.load(tmp_path / "checkpoint")
    with pytest.raises(ConfigurationError, match="held out none of them"):
        model.evaluate(held_out(clicks(), 0.1))
    assert model.evaluate(held_out(clicks(seed=2), 0.1)).examples < ROWS


def test_the_valid_part_of_another_split_is_refused_before_the_training() -> None:
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(LR(SCHEMA), cluster, batch_rows=16, progress=False)
        train, valid = pslib.split(clicks(), 0.2)
        with pytest.raises(ConfigurationError, match=r"got 0\.3 of these data, drawn by a hash"):
            trainer.fit(train, valid=held_out(clicks(), 0.3))
        assert cluster.status()["examples"] == 0
        (result,) = trainer.fit(train, valid=valid)
        assert result.examples < ROWS
