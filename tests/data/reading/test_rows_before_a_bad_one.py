"""Rows read before a bad row are trained, though the reader is far ahead of the computation."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pslib.data.order import Order
from pslib.errors import DataError
from pslib.trainer import trainer as trainer_module
from tests.support.clusters import cluster_of
from tests.support.counting import write_examples
from tests.support.counting_trainers import counting, counts_in

WINDOW = 80


def test_all_batches_that_were_read_before_a_bad_row_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four shuffle windows are read; no batch of the one with the bad row is trained."""
    monkeypatch.setattr(trainer_module, "Order", partial(Order, window_rows=WINDOW))
    labels = np.zeros(4 * WINDOW, np.float32)
    labels[0] = 0.5
    data = write_examples(tmp_path / "bad.parquet", 4 * WINDOW, row_group_rows=WINDOW, labels=labels)
    with cluster_of(2) as running:
        trainer = counting(running.join(), lambda *_: time.sleep(0.02))
        with pytest.raises(DataError, match="a label is 0 or 1"):
            trainer.fit(data)
        counts, examples = counts_in(trainer)
    assert examples > 0
    assert examples % WINDOW == 0
    assert set(counts.values()) <= {0.0, 1.0}
