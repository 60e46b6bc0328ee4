"""The example of online learning: the model that follows the training beats that of each hour."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.processes.command import ROOT


def test_the_followed_model_is_ahead_of_the_hourly_one_by_half_of_what_is_planted(tmp_path: Path) -> None:
    out = tmp_path / "news"
    command = [sys.executable, ROOT / "examples" / "news" / "run.py", "--hours", "2", "--out", out]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    mean = json.loads((out / "auc.json").read_text())["mean"]
    planted = mean["true"] - mean["true hourly"]
    assert planted > 0.08
    assert mean["followed"] - mean["hourly"] > planted / 2
    assert (out / "auc.png").stat().st_size > 5000
    assert not [
        one for one in psutil.process_iter(["cmdline"]) if str(out) in " ".join(one.info["cmdline"] or [])
    ]


def test_a_folder_that_is_there_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "news" / "run.py", "--out", tmp_path]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == f"{tmp_path}: expected a folder that is not there yet; give another by --out\n"
