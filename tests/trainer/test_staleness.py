"""The bound on staleness: how it rises, and that the pipeline keeps to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pslib
from pslib.trainer.pipeline.pace import StalenessBound
from tests.support.counting import CountingModel, CountStep, write_examples
from tests.support.training import counts_of, examples_counted, trainer_on


class FillsOneArray(CountingModel):
    """Gives its gradients in arrays that each step fills anew."""

    def __init__(self) -> None:
        super().__init__()
        self._rows, self._dense = np.zeros((64, 1), np.float32), np.zeros(1, np.float32)

    def loss_and_gradients(self, batch: Any, rows: Any, dense: Any, step_seed: int) -> CountStep:
        step = super().loss_and_gradients(batch, rows, dense, step_seed)
        self._rows[:], self._dense[:] = 0, step.dense_gradients["examples"]
        gradient = self._rows[: batch.keys.size]
        gradient[:] = step.rows_gradient
        return CountStep(step.loss, step.logits, gradient, {"examples": self._dense})


def ahead(staleness: StalenessBound, batches: int) -> list[int]:
    """How far each of the next batches may run ahead."""
    found = []
    for _ in range(batches):
        found.append(staleness.now)
        staleness.batch_begun()
    return found


@given(bound=st.integers(0, 50), warmup=st.integers(0, 200))
def test_the_bound_rises_evenly_from_zero_in_the_mean_and_ends_where_it_should(bound, warmup):
    seen = ahead(StalenessBound(bound, warmup), warmup + 5)
    means = [bound * min(1.0, begun / warmup) if warmup else bound for begun in range(warmup + 5)]
    assert seen[0] == (0 if warmup else bound)
    assert seen[warmup:] == [bound] * 5
    assert all(abs(one - mean) < 1 for one, mean in zip(seen, means, strict=True))
    assert all(-1 < sum(seen[:end]) - sum(means[:end]) < 1e-6 for end in range(warmup))


def test_where_the_bound_is_a_fraction_those_that_run_ahead_lie_between_those_that_do_not():
    seen = "".join(map(str, ahead(StalenessBound(1, 300), 300)))
    assert "1" not in seen[:20]
    assert "11" not in seen[20:140]
    assert "00" not in seen[160:]


def test_a_model_that_goes_on_needs_no_warmup():
    staleness = StalenessBound(3, 100)
    staleness.skip_warmup()
    assert ahead(staleness, 3) == [3, 3, 3]


def test_without_warmup_the_whole_bound_holds_from_the_first_batch():
    assert StalenessBound(4, 0).now == 4


@pytest.mark.parametrize("staleness", [0, 2, 6])
def test_a_model_may_fill_the_same_arrays_in_every_step(staleness: int, tmp_path: Path) -> None:
    """Gradients are on their way while the next steps are computed."""
    data = write_examples(tmp_path / "a.parquet", 403)
    with pslib.connect() as cluster:
        trainer_on(cluster, FillsOneArray(), staleness=staleness, lease_rows=400).fit(data)
        assert counts_of(cluster, np.arange(403)).tolist() == [1.0] * 403
        assert examples_counted(cluster) == 403
