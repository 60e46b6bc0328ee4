"""Criteo's own format, from text to a trained model through the command line; no value is lost on the way."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pslib.data.convert.csv_criteo import CRITEO_DENSE, CRITEO_LABEL, CRITEO_SPARSE
from tests.support.data.real_data import real_data
from tests.support.processes.command import Command

COLUMNS = (CRITEO_LABEL, *CRITEO_DENSE, *CRITEO_SPARSE)
TRAIN_ROWS = 8000


@pytest.fixture(scope="module")
def slice_of_criteo() -> Path:
    return real_data("ctr_criteo_slices/criteo_first10000.tsv")


def pslib(folder: Path, *arguments: str | Path) -> Command:
    """Run one command to its end in order."""
    command = Command(folder, *arguments)
    try:
        assert command.finish(100) == 0, command.output
        assert command.left_over() == []
    finally:
        command.clean_up()
    return command


def cells_of(path: Path) -> dict[str, list[str]]:
    """Each column's cells as they stand in the file, split by nothing but Python."""
    columns: dict[str, list[str]] = {name: [] for name in COLUMNS}
    for line in path.read_bytes().decode("ascii").removesuffix("\n").split("\n"):
        for name, cell in zip(COLUMNS, line.split("\t"), strict=True):
            columns[name].append(cell)
    return columns


def test_the_slice_trains_through_the_command_line(slice_of_criteo: Path, tmp_path: Path) -> None:
    lines = slice_of_criteo.read_text().splitlines(keepends=True)
    for part, of_part in (("train", lines[:TRAIN_ROWS]), ("test", lines[TRAIN_ROWS:])):
        text = tmp_path / f"{part}.tsv"
        text.write_text("".join(of_part))
        pslib(tmp_path, "convert", "criteo", text, tmp_path / f"{part}.parquet")
    job = {
        "data": {
            "train": "train.parquet",
            "test": "test.parquet",
            "schema": {
                "label": CRITEO_LABEL,
                "dense": [{"name": name, "log1p": True} for name in CRITEO_DENSE],
                "sparse": list(CRITEO_SPARSE),
            },
        },
        "model": {"name": "deepfm", "dim": 4, "hidden": [32, 16]},
        "optimizers": {"rows": {"name": "Adagrad", "learning_rate": 0.05}},
        "training": {"batch_rows": 64, "epochs": 1, "seed": 1},
        "cluster": {"servers": 2, "trainers": 2},
        "out": "out",
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    pslib(tmp_path, "train", tmp_path / "job.yaml", "--quiet")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    print({name: summary[name] for name in ("auc", "logloss", "seconds", "rows")})
    cells = cells_of(tmp_path / "train.tsv")
    # A null is a key of its own: the distinct cells of each column, "" among them, are the rows of the table.
    assert summary["rows"] == sum(len(set(cells[name])) for name in CRITEO_SPARSE)
    assert summary["examples"] == TRAIN_ROWS
    assert summary["pushes_sent"] == summary["pushes_applied"]
    base_rate = 0.227  # of the test part; what a constant would reach
    entropy = -base_rate * math.log(base_rate) - (1 - base_rate) * math.log(1 - base_rate)
    assert summary["auc"] > 0.69  # 0.72 as a rule; 0.746 is the best that is known of this slice
    assert summary["logloss"] < entropy
