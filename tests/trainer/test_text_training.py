"""Data in memory, in Parquet and in text trains the same model, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pslib
from rec_models import DeepFM

SCHEMA = pslib.Schema(
    label="click",
    dense=["price"],
    sparse=["user", "city"],
    ragged=[pslib.RaggedField("tags", separator="|")],
)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    random = np.random.default_rng(1)
    rows = 2000
    tags = ["|".join(random.choice(list("abcdef"), random.integers(0, 4))) for _ in range(rows)]
    found = pd.DataFrame(
        {
            "click": random.integers(0, 2, rows),
            "user": random.integers(0, 300, rows),
            "city": random.choice(["Oslo", "Köln", "東京", 'a, "b"'], rows),
            "price": random.normal(size=rows),
            "tags": tags,
        }
    )
    found.loc[::7, "price"] = None
    found.loc[::11, "city"] = None
    return found


def trained(data: Any, place: Path) -> pslib.EvalResult:
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(DeepFM(SCHEMA, dim=4, hidden=(8,)), cluster, batch_rows=64, progress=False)
        (result,) = trainer.fit(data, epochs=1, valid=data)
        trainer.save(place)
    return result


def vectors(place: Path) -> list[np.ndarray]:
    model = pslib.load(place)
    fields = {"user": list(range(300)), "city": ["Oslo", None, "東京"], "tags": list("abcdef")}
    return [model.vectors(name, values) for name, values in fields.items()]


def test_a_frame_its_parquet_and_its_text_train_to_the_same_bits(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv.gz", index=False)
    result = trained(frame, tmp_path / "frame")
    for data in (tmp_path / "a.parquet", tmp_path / "a.csv.gz"):
        place = tmp_path / data.name.replace(".", "-")
        assert trained(data, place) == result
        for one, other in zip(vectors(place), vectors(tmp_path / "frame"), strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_iterator_of_record_batches_is_read_once_and_kept(frame: pd.DataFrame, tmp_path: Path) -> None:
    table = pa.Table.from_pandas(frame)
    result = trained(frame, tmp_path / "frame")
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(DeepFM(SCHEMA, dim=4, hidden=(8,)), cluster, batch_rows=64, progress=False)
        trainer.fit((batch for batch in table.to_batches(100)), epochs=1)
        assert trainer.evaluate(table.to_reader(300)) == result
        assert trainer.evaluate(iter(table.to_batches(70)), predictions=tmp_path / "scores") == result


def test_a_model_of_texts_is_asked_with_a_csv_of_digits(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.assign(user=frame["user"].astype(str)).to_parquet(tmp_path / "train.parquet")
    frame.to_csv(tmp_path / "new.csv", index=False)
    trained(tmp_path / "train.parquet", tmp_path / "checkpoint")
    model = pslib.load(tmp_path / "checkpoint")
    np.testing.assert_array_equal(
        model.predict(tmp_path / "new.csv"), model.predict(tmp_path / "train.parquet")
    )


def test_a_model_of_integers_is_asked_with_a_csv_in_which_one_id_is_a_name(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    frame.to_csv(tmp_path / "train.csv", index=False)
    trained(tmp_path / "train.csv", tmp_path / "checkpoint")
    model = pslib.load(tmp_path / "checkpoint")
    expected = model.predict(frame)
    frame.astype({"user": object}).replace({"user": {frame["user"][0]: "A12"}}).to_csv(
        tmp_path / "new.csv", index=False
    )
    found, same = model.predict(tmp_path / "new.csv"), frame["user"] != frame["user"][0]
    np.testing.assert_array_equal(found[same], expected[same])
    assert (found[~same] != expected[~same]).all()
