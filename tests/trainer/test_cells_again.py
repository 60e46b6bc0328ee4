"""A notebook's cell that makes cluster and trainer runs again: the second takes the place of the first."""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import pyarrow as pa
import pytest

import pslib
from rec_models import LR
from tests.support.waiting import wait_until

ROWS = 400
SCHEMA = pslib.Schema(label="click", sparse=["user"])


def clicks() -> pa.Table:
    random = np.random.default_rng(1)
    return pa.table({"click": random.integers(0, 2, ROWS), "user": random.integers(0, 20, ROWS)})


def cell(out: Any) -> pslib.Trainer:
    cluster = pslib.connect()
    return pslib.Trainer(LR(SCHEMA), cluster, batch_rows=16, out=out)


@pytest.mark.parametrize("out", ["out", None])
def test_a_cluster_that_no_name_refers_to_closes_with_its_threads(tmp_path: Path, out: str | None) -> None:
    before = set(threading.enumerate())
    trainer = cell(out and tmp_path / out)
    trainer.fit(clicks())
    first, own = ref(trainer.cluster), set(threading.enumerate()) - before
    assert {"pslib-coordinator", "pslib-recorder"} <= {thread.name for thread in own}
    for _ in range(2):
        trainer = cell(None)  # the name is the new trainer's only after that is made
    wait_until(lambda: not any(thread.is_alive() for thread in own), 20, "its threads to end")
    wait_until(lambda: first() is None, 20, "its tables to be freed")
    if out:
        assert json.loads((tmp_path / out / "summary.json").read_text())["examples"] == ROWS
    trainer.cluster.close()


def test_the_records_of_a_folder_are_those_of_the_last_trainer(tmp_path: Path) -> None:
    first = cell(tmp_path)
    first.fit(clicks(), epochs=3)
    second = cell(tmp_path)
    second.fit(clicks())
    first.evaluate(clicks(), name="of the first")
    first.cluster.close()
    assert not (tmp_path / "summary.json").exists(), "those of the second are not done"
    second.evaluate(clicks(), name="of the second")
    second.cluster.close()
    assert json.loads((tmp_path / "summary.json").read_text())["examples"] == ROWS
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["name"] for line in lines} == {None, "of the second"}
    assert max(line["examples"] for line in lines) == ROWS


def test_a_cell_that_makes_the_trainer_anew_says_that_it_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shell, ipython = SimpleNamespace(kernel=object(), execution_count=1), ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    caplog.set_level(logging.WARNING)

    def made() -> pslib.Trainer:
        return pslib.Trainer(LR(SCHEMA), pslib.connect(), batch_rows=16, progress=False)

    trainers = [made()]
    trainers[0].fit(clicks())
    trainers.append(made())
    assert "begins anew" not in caplog.text, "one cell may make several"
    trainers[-1].fit(clicks())
    shell.execution_count = 2
    trainers.append(made())
    assert f"the one before, of LR, has trained {ROWS} examples; to go on with that, run fit" in caplog.text
    for trainer in trainers:
        trainer.cluster.close()
