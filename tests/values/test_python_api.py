"""The script of the README: alone with a cluster inside its process, and unchanged under a launcher."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.command import ROOT, Command

SCRIPT = ROOT / "examples" / "train_deepfm.py"
TRAIN_ROWS = 240_000
"""So many batches that what two asynchronous trainers learn does not depend on which was first."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated click data whose best possible AUC is known."""
    folder = tmp_path_factory.mktemp("generated")
    command = Command(
        folder, "data", "generate", folder / "data", "--rows", str(TRAIN_ROWS), "--test-rows", "20000"
    )
    try:
        assert command.finish(100) == 0, command.output
    finally:
        command.clean_up()
    return folder / "data"


def aucs(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"trainer \d: AUC (0\.\d+)", output)]


def best_possible(data: Path) -> float:
    return float(json.loads((data / "generated.json").read_text())["test"]["best_auc"])


def test_the_script_is_short() -> None:
    lines = [line for line in SCRIPT.read_text().splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 25


def test_the_script_runs_alone(data: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, data], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    (auc,) = aucs(done.stdout)
    assert 0.65 < auc < best_possible(data)
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs" / "script" / "checkpoint" / "manifest.json").is_file()
    summary = json.loads((tmp_path / "runs" / "script" / "summary.json").read_text())
    assert summary["pushes_sent"] == summary["pushes_applied"] > 0
    assert summary["examples"] == TRAIN_ROWS


def test_the_same_script_runs_unchanged_on_two_servers_and_two_trainers(data: Path, tmp_path: Path) -> None:
    command = Command(
        tmp_path, "launch", "--on", "local", "--servers", "2", "--trainers", "2", "--out", tmp_path / "out",
        SCRIPT, data,
    )  # fmt: skip
    try:
        assert command.finish(100) == 0, command.output
        assert command.left_over() == []
    finally:
        command.clean_up()
    of_both = aucs(command.output)
    assert len(of_both) == 2
    assert of_both[0] == of_both[1]  # merged over trainers, not each its own
    assert 0.65 < of_both[0] < best_possible(data)
    assert "Traceback" not in command.output
    manifest = json.loads((tmp_path / "runs" / "script" / "checkpoint" / "manifest.json").read_text())
    assert manifest["servers"] == 2
