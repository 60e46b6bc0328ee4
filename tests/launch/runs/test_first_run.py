"""A first run on one's own data: describe, train, and a test AUC on the screen, with nothing edited."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, LAST = 12_000, 1_200


def pslib(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch.cli.main", *words]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended


def clicks(file: Path) -> None:
    """Clicks with a row id each, in the order of their times; users differ in how much they click."""
    choice = np.random.default_rng(8)
    user, item = choice.integers(0, 200, ROWS), choice.integers(0, 100, ROWS)
    score = choice.normal(0, 2, 200)[user] + choice.normal(0, 1, 100)[item]
    columns = {
        "clicked": (choice.random(ROWS) < 1 / (1 + np.exp(-score))).astype(np.int8),
        "user": [f"uživatel {one}" for one in user],
        "item": item,
        "price": np.where(choice.random(ROWS) < 0.1, None, choice.lognormal(3, 1, ROWS)),
        "seen": pa.array(1_700_000_000 + np.sort(choice.integers(0, 10**6, ROWS)), pa.timestamp("s")),
        "visit": item + user * 1000 + np.arange(ROWS) * 10**6,
    }
    pq.write_table(pa.table(columns), file, row_group_size=2500)


def test_from_data_to_a_test_auc_in_two_commands(tmp_path):
    clicks(tmp_path / "clicks.parquet")
    said = pslib(tmp_path, "describe", "clicks.parquet", "--out", "job.yaml").stdout
    assert "test: the last rows by seen, 1,200 of 12,000, are held out" in said
    trained = pslib(tmp_path, "train", "job.yaml")
    assert f" on {LAST:,} examples" in trained.stderr
    assert "too few" not in trained.stderr
    auc = float(re.search(r"^AUC +(\d\.\d+)$", trained.stdout, re.M)[1])
    assert 0.7 < auc < 1
    (tmp_path / "runs" / "job").rename(tmp_path / "moved")
    for run in ("moved", "moved/job.yaml"):
        again = pslib(tmp_path, "eval", run, "--checkpoint", "moved/checkpoint", "--json")
        assert abs(json.loads(again.stdout)["auc"] - auc) < 1e-4
    other = pslib(tmp_path, "eval", "moved", "clicks.parquet").stdout
    assert "examples    12,000 (" in other
    assert (
        pslib(tmp_path, "eval", "moved", "clicks.parquet", "--checkpoint", "moved/checkpoint").stdout == other
    )


def test_several_trainers_train_on_no_row_that_is_held_out_and_short_trainings_are_warned_of(tmp_path):
    clicks(tmp_path / "clicks.parquet")
    job = {
        "data": {"train": "clicks.parquet", "schema": {"label": "clicked", "sparse": ["visit"]}},
        "model": {"name": "lr"},
        "training": {"batch_rows": 512},
        "cluster": {"trainers": 2},
        "out": "run",
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    ended = pslib(tmp_path, "train", "job.yaml", "--test-share", "0.1", "--set", "data.test_by=seen")
    assert (
        "pslib: warning: 1 epoch in batches of 512 by 2 trainers takes 11 steps each, too few" in ended.stderr
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["examples"], summary["rows"]) == (ROWS - LAST, ROWS - LAST)  # a row a visit
    assert f" on {LAST:,} examples" in ended.stderr
