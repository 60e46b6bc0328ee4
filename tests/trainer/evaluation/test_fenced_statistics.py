"""Statistics whose trainer falls asleep before it sends them: those of its successor count, and count
once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.cluster import Cluster
from pslib.errors import PslibError
from pslib.trainer.evaluation.batch_norm_stats import StatisticsJobs
from rec_models import DNN
from tests.support.clusters import cluster_of
from tests.support.counting import SCHEMA, write_examples
from tests.support.training import UNHURRIED
from tests.support.waiting import PATIENCE_S, wait_until

MODEL = DNN(SCHEMA, dim=4, hidden=(6, 5), batch_norm=True)


@pytest.mark.parametrize("sleeps", ["before", "after"])
def test_statistics_are_added_once_when_the_lease_goes_on_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeps: str
) -> None:
    """The first to measure counts as lost, before its push or after, and wakes up when its successor is
    done."""
    write_examples(tmp_path / "a.parquet", 300)
    asleep, added = threading.Lock(), []
    missing, push = StatisticsJobs._missing, StatisticsJobs._add

    def sleep(now: str) -> None:
        """The first one: another one may have its lease; return when it is done with it."""
        if sleeps != now or not asleep.acquire(blocking=False):
            return
        book = session.registry.jobs[-1].book
        (holder,) = book.holders()
        book.trainer_lost(holder)
        wait_until(lambda: book.done, PATIENCE_S, lambda: "the successor to end the lease")

    def measuring(jobs: StatisticsJobs, *about: Any) -> Any:
        found = missing(jobs, *about)
        added.append(found)
        sleep("before")
        return found

    def adding(*about: Any) -> None:
        push(*about)
        sleep("after")

    monkeypatch.setattr(StatisticsJobs, "_missing", measuring)
    monkeypatch.setattr(StatisticsJobs, "_add", staticmethod(adding))

    def script(cluster: Cluster) -> np.ndarray:
        trainer = pslib.Trainer(MODEL, cluster, batch_rows=32, progress=False, seed=5)
        before = cluster.client.pull({}, dense=True).wait().dense
        try:
            trainer.fit(tmp_path / "a.parquet")
        except PslibError:  # it was silent, and others have its lease
            return np.empty(0, np.float32)
        layout = trainer._layout.views
        after = layout(cluster.client.pull({}, dense=True).wait().dense)
        return np.concatenate([after[one] - layout(before)[one] for one in MODEL.statistics()])

    with cluster_of(2, trainers=2, timing=UNHURRIED) as running:
        session = running.embedded.coordinator.session
        moved = running.results(script, script)
        layout = pslib.trainer.pipeline.dense.DenseLayout(dict(MODEL.dense_shapes()))
    ended_well = [one for one in moved if one.size]
    assert len(ended_well) == (1 if sleeps == "before" else 2), "a trainer that has added nothing is told so"
    first, second = (
        np.concatenate([views[name] for name in MODEL.statistics()]) for views in map(layout.views, added)
    )
    assert np.abs(first).max() > 0.01
    assert np.allclose(second, first if sleeps == "before" else 0, atol=1e-6)
    for one in ended_well:
        np.testing.assert_allclose(one, first, rtol=1e-5, atol=1e-6)
