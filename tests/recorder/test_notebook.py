"""Progress in a notebook: one block of figures and charts a cell that trains, drawn again in place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pslib.recorder import RunRecorder
from tests.recorder.test_recorder import training
from tests.support.hand_clock import HandClock

ROOT = Path(__file__).resolve().parents[2]
CELLS = """\
# %% data
import numpy as np
import pslib
from rec_models import DeepFM

random = np.random.default_rng(1)
users = random.integers(0, 50, 40_000)
clicks = {"user": users, "click": (users + random.integers(0, 50, 40_000) > 50).astype("int8")}
schema = pslib.Schema(label="click", sparse=["user"])
cluster = pslib.connect()
trainer = pslib.Trainer(DeepFM(schema, dim=4, hidden=(8,)), cluster, batch_rows=64, out="run")
# %% fit
_ = trainer.fit(clicks, epochs=4, valid=clicks)
# %% again
_ = trainer.fit(clicks, epochs=4)
# %% history
list(trainer.history.to_pandas().columns[:4]), trainer.history.table.num_rows > 1
# %% end
cluster.close()
"""


class Shown:
    """A kernel's display: the bundles of each block."""

    def __init__(self) -> None:
        self.blocks: list[list[Mapping[str, str]]] = []
        self.shell = SimpleNamespace(kernel=object(), execution_count=1)

    def display(self, bundle: Mapping[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        block = [bundle]
        self.blocks.append(block)
        return SimpleNamespace(update=lambda again, raw: block.append(again))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Output of a notebook: this process is its kernel."""
    kernel, ipython, displays = Shown(), ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: kernel.shell  # type: ignore[attr-defined]
    displays.display = kernel.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return kernel


def look(run: RunRecorder, every_s: float, **status: Any) -> None:
    run._clock.sleep_s(every_s)
    run.observe(status)


def test_a_cell_that_trains_has_one_block_drawn_at_most_once_a_second(shown: Shown) -> None:
    run = RunRecorder(None, HandClock())
    look(run, 0.5, phase="waiting for the next call of the trainers")
    assert shown.blocks == [], "nothing is shown before the first training"
    for count in range(1, 9):
        look(run, 0.5, **training(1_000 * count))
    (block,) = shown.blocks
    assert len(block) == 4
    assert "<svg" in block[-1]["text/html"]
    assert block[-1]["text/plain"].startswith("training epoch 2/2: 7,000 of 10,000 examples in 0:04, 2,000/s")


def test_epochs_and_evaluations_of_a_cell_share_its_block_and_another_cell_has_its_own(shown: Shown) -> None:
    run = RunRecorder(None, HandClock())
    for phase in ("training", "evaluating", "training"):
        look(run, 2.0, **training(1_000) | {"phase": phase})
    assert len(shown.blocks) == 1
    shown.shell.execution_count = 2
    look(run, 2.0, **training(1_000) | {"phase": "waiting"})
    assert len(shown.blocks) == 1, "the cell after it trains nothing"
    look(run, 2.0, **training(2_000))
    assert len(shown.blocks) == 2


def test_a_run_that_waits_is_drawn_once(shown: Shown) -> None:
    run = RunRecorder(None, HandClock())
    look(run, 2.0, **training(1_000))
    for _ in range(5):
        look(run, 2.0, **training(1_000) | {"phase": "waiting for the next call of the trainers"})
    (block,) = shown.blocks
    assert len(block) == 2


def test_a_block_keeps_the_last_state_of_its_run(shown: Shown) -> None:
    run = RunRecorder(None, HandClock())
    look(run, 2.0, **training(1_000))
    look(run, 0.1, **training(10_000))
    run.finish({"phase": "done"})
    assert shown.blocks[0][-1]["text/plain"].startswith("done: 10,000 of 10,000 examples")


def test_texts_of_a_run_are_escaped(shown: Shown) -> None:
    run = RunRecorder(None, HandClock())
    look(run, 2.0, **training(1_000, error="<script>alert(1)</script>"))
    assert "&lt;script&gt;" in shown.blocks[0][0]["text/html"]
    assert "<script" not in shown.blocks[0][0]["text/html"]


def test_an_interactive_terminal_is_no_notebook(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    del shown.shell.kernel
    run = RunRecorder(None, HandClock())
    look(run, 2.0, **training(1_000))
    assert shown.blocks == []
    assert "training" in capsys.readouterr().err


@pytest.mark.cluster
def test_a_fit_in_jupyter_shows_figures_and_charts_below_its_cell(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(CELLS, encoding="utf-8")
    program = ROOT / "tests" / "first_hour" / "run_notebook.py"
    done = subprocess.run(
        [sys.executable, str(program), "cells.py", "run/metrics.jsonl"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    for cell in ("data", "fit", "again", "history", "end"):
        assert told[cell]["error"] == [], told[cell]
    for cell in ("fit", "again"):
        assert told[cell]["html"].count("<progress") == 1, f"one block in {cell}"
        assert "<title>loss over examples: training</title>" in told[cell]["html"]
    assert " of 320,000 examples in " in told["again"]["text"]
    assert told["history"]["text"] == "(['event', 'seconds', 'epoch', 'examples'], True)"
    assert "<progress" not in told["data"]["html"] + told["history"]["html"]
