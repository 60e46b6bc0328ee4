"""The benchmark of two billion parameters runs, small, from filling to the picture."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes.standin_launch import ROOT


def test_a_small_table_is_filled_trained_and_drawn(tmp_path: Path):
    report, chart = tmp_path / "report.json", tmp_path / "chart.png"
    script = ROOT / "benchmarks" / "billion.py"
    command = [sys.executable, str(script), "--quick", "--json", str(report), "--picture", str(chart)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, timeout=100, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text(encoding="utf-8"))
    figures = found["figures"]
    assert figures["rows"] >= 199_000
    assert figures["parameters"] >= 17 * figures["rows"]
    assert 40 < figures["bytes_a_row"] < 200
    assert figures["examples_per_s"] > 0
    trained = [phase["rows"] for phase in found["grown"]["phases"] if phase["what"] == "train"]
    assert trained == sorted(trained)
    assert len(trained) == 6
    assert chart.stat().st_size > 10_000
