"""A job whose data is text: processes share one conversion, and the examples are counted once."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from tests.support.processes.command import Command

ROWS, EPOCHS = 6000, 2
JOB = """\
data:
  train: train
  test: test.jsonl
  schema:
    label: click
    dense: [price]
    sparse: [user, {name: hour, of: time, take: hour}]
    ragged: [{name: genres, separator: "|"}]
model: {name: lr}
training: {batch_rows: 100, epochs: 2}
cluster: {servers: 1, trainers: 2}
out: out
"""


def write_data(folder: Path) -> None:
    dice = random.Random(1)
    rows = []
    for number in range(ROWS + 500):
        user = "A12" if number == 7 else str(dice.randrange(50))
        liked = "Drama" if user < "3" else "Comedy"
        genre = dice.choice(["Drama", "Comedy"])
        click = int(dice.random() < (0.9 if genre == liked else 0.1))
        time = f"2024-05-{dice.randrange(1, 30):02} {dice.randrange(24):02}:00:00"
        rows.append([click, user, genre, dice.choice(["", "0.5", "-1"]), time])
    names = ["click", "user", "genres", "price", "time"]
    (folder / "train").mkdir()
    for part in range(2):
        with gzip.open(folder / "train" / f"{part}.csv.gz", "wt", newline="") as file:
            csv.writer(file).writerows([names, *rows[part:ROWS:2]])
    with (folder / "test.jsonl").open("w") as file:
        for row in rows[ROWS:]:
            record = dict(zip(names, row, strict=True)) | {"price": float(row[3] or 0), "user": int(row[1])}
            file.write(json.dumps(record) + "\n")
    with (folder / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["genres", "note", *names[3:], "user"], ["Drama|Comedy", "x", "", "", 7]])


def test_text_is_trained_evaluated_and_predicted_by_commands(
    tmp_path: Path, cache: Path, start: Callable[..., Command]
) -> None:
    write_data(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    training = start("train", tmp_path / "job.yaml")
    assert training.finish(120) == 0, training.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["examples"] == ROWS * EPOCHS
    assert summary["pushes_sent"] == summary["pushes_applied"]
    assert summary["auc"] > 0.5
    assert len(training.lines("text is converted to Parquet once and kept in")) == 1
    made = {path.name.rpartition("-")[0] for path in cache.glob(".pslib-text-*/*")}
    assert {"0.csv.gz", "1.csv.gz", "test.jsonl"} <= made
    checking = start("data", "check", tmp_path / "test.jsonl", "--config", tmp_path / "job.yaml")
    assert checking.finish(60) == 0, checking.output
    scores = tmp_path / "scores.parquet"
    predicting = start("predict", tmp_path / "out" / "checkpoint", tmp_path / "new.csv", "--out", scores)
    assert predicting.finish(60) == 0, predicting.output
    (row,) = pq.read_table(scores).to_pylist()
    assert 0 < row.pop("prediction") < 1
    assert row == {"genres": "Drama|Comedy", "note": "x", "price": None, "time": None, "user": 7}
