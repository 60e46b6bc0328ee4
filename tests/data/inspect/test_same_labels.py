"""A label that is 0 in all rows, or 1, is trained on after one line that says so."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pslib
from pslib.data.arrow_data import open_data
from pslib.errors import ConfigurationError
from rec_models import build

SCHEMA = pslib.Schema(label="y", sparse=["user"])
TOLD = "column 'y': every label is {}: AUC is not defined, and nothing can be learnt; is it the right column"


def frame(label: Any, rows: int = 40) -> pd.DataFrame:
    return pd.DataFrame({"y": label, "user": np.arange(rows) % 7})


def written(folder: Path, form: str, data: pd.DataFrame, name: str = "a") -> Any:
    path = folder / f"{name}.{form}"
    if form == "csv":
        data.to_csv(path, index=False)
    elif form == "parquet":
        data.to_parquet(path, row_group_size=16)
    return data if form == "frame" else path


@pytest.mark.parametrize("form", ["parquet", "csv", "frame"])
@pytest.mark.parametrize("label", [0, 1, 0.0, True])
def test_data_note_a_label_of_one_value(tmp_path: Path, form: str, label: Any) -> None:
    (note,) = open_data(written(tmp_path, form, frame(label)), SCHEMA).notes
    assert note.startswith(TOLD.format(int(label)))


def test_half_floats_in_memory_are_looked_at_too() -> None:
    assert len(open_data(frame(np.float16(1)), SCHEMA).notes) == 1


@pytest.mark.parametrize("form", ["parquet", "csv", "frame"])
def test_one_other_label_in_any_part_is_enough(tmp_path: Path, form: str) -> None:
    labels = np.zeros(40, np.int64)
    labels[23] = 1
    assert open_data(written(tmp_path, form, frame(labels)), SCHEMA).notes == ()


def test_files_of_one_label_each_are_no_data_of_one_label(tmp_path: Path) -> None:
    files = [written(tmp_path, "csv", frame(label), str(label)) for label in (0, 1)]
    assert open_data(files, SCHEMA).notes == ()
    assert len(open_data(files[0], SCHEMA).notes) == 1


def test_a_file_without_statistics_notes_nothing(tmp_path: Path) -> None:
    frame(0).to_parquet(tmp_path / "a.parquet", write_statistics=False)
    assert open_data(tmp_path / "a.parquet", SCHEMA).notes == ()


def test_each_label_of_several_is_noted(tmp_path: Path) -> None:
    schema = pslib.Schema(label="y", more_labels=["buy"], sparse=["user"])
    notes = open_data(frame(np.arange(40) % 2).assign(buy=0), schema).notes
    assert [note.partition(":")[0] for note in notes] == ["column 'buy'"]


def test_a_training_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with pslib.connect() as cluster, caplog.at_level(logging.WARNING, "pslib"):
        trainer = pslib.Trainer(build("lr", SCHEMA, {}), cluster, batch_rows=16, progress=False)
        trainer.fit(frame(1), epochs=2)
        trainer.fit(frame(1))
        assert np.isnan(trainer.evaluate(frame(1)).auc)
    (line,) = (line for line in caplog.messages if "every label" in line)
    assert line.startswith(f"pslib: warning: {TOLD.format(1)}")


def test_a_schema_needs_no_label_where_the_model_needs_none() -> None:
    assert pslib.Schema(ragged=["items"]) == pslib.Schema(label=None, ragged=["items"])
    with pytest.raises(ConfigurationError, match="DeepFM: schema: expected 1 label, got none; name the"):
        build("deepfm", pslib.Schema(sparse=["user"]), {})
