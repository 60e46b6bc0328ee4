"""Trainers of a model that counts, for tests of cuts: slow, stopped in their middle, counted afterwards."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pslib
from pslib import SparseField
from pslib.batch import Batch
from pslib.checkpoint import newest
from pslib.config import Timing
from pslib.data.columns import keys_of
from pslib.table.optimizers import SGD
from tests.support.counting import CountingModel, write_examples

ROWS = 1200
QUICK = Timing(heartbeat_s=0.05, request_s=20.0)
"""Waits that fit a busy machine, and heartbeats that a short training has some of."""


def counted_examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of ``ROWS`` examples; tests make a fixture of it."""
    return str(write_examples(tmp_path_factory.mktemp("cuts") / "train.parquet", ROWS))


class StopError(Exception):
    """Ends a training in its middle."""


def slowly(batch: Batch, rows: Any) -> None:
    """A batch takes so long that there are heartbeats between some."""
    time.sleep(0.01)


def stop_after(batches: int, saved: Path) -> Callable[[Batch, Any], None]:
    """Raises in the batch after so many, or in the first one after it that sees a checkpoint in a folder."""
    seen = Counter[str]()

    def on_step(batch: Batch, rows: Any) -> None:
        slowly(batch, rows)
        seen["batches"] += 1
        if seen["batches"] > batches:
            end_s = time.monotonic() + 1.0  # its files may take longer, and a cut may wait for this batch
            while not (is_saved := any(saved.glob("*/manifest.json"))) and time.monotonic() < end_s:
                time.sleep(0.01)
            if is_saved:
                raise StopError

    return on_step


def stop_in(call: int, batches: int, saved: Path) -> Callable[[Batch, Any], None]:
    """Raises in the first batch after so many that sees a checkpoint of this call in a folder."""
    steps = count(1)

    def is_saved() -> bool:
        return any(saved.glob("*/manifest.json")) and saved_in(saved)["cut"]["table"]["job"] == call

    def on_step(batch: Batch, rows: Any) -> None:
        slowly(batch, rows)
        end_s, late = time.monotonic() + 1.0, next(steps) > batches  # a cut may wait for this batch
        while late and time.monotonic() < end_s:
            if is_saved():
                raise StopError
            time.sleep(0.01)

    return on_step


def counting(cluster: pslib.Cluster, on_step: Any = None, **settings: Any) -> pslib.Trainer:
    plain = {"batch_rows": 16, "lease_rows": 80, "dense_optimizer": SGD(1.0), "progress": False}
    return pslib.Trainer(CountingModel(on_step), cluster, **plain | settings)


def counts_in(trainer: pslib.Trainer) -> tuple[dict[int, float], float]:
    """Return the count of each example, and the count of all, as the servers have them."""

    client = trainer.cluster.client
    keys = keys_of(pa.array(np.arange(ROWS)), SparseField("id").salt)
    pulled = client.pull({"counts": keys}, dense=True).wait()
    return dict(enumerate(pulled.rows["counts"][:, 0].tolist())), float(pulled.dense[0])


def saved_in(folder: Path) -> dict[str, Any]:
    return json.loads((Path(newest(str(folder))) / "manifest.json").read_text())
