"""The pipeline behind `Trainer.fit`: permits, leases read slowly or inherited, and the seeds of steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslib
from cython_ext.common.hashing import hash_ints
from pslib.batch import Batch
from pslib.cluster import Cluster
from pslib.config import Timing
from pslib.data.reader import LeaseReader
from pslib.errors import ConfigurationError
from pslib.trainer.collective import HeldLease, Job
from pslib.trainer.pipeline.row_source import ServerRows
from tests.support.clusters import cluster_of, vanish
from tests.support.counting import SCHEMA, CountingModel, write_examples
from tests.support.training import counts_of, one_trainer, trainer_on
from tests.support.waiting import WAIT_S, wait_until

SOON_LOST = Timing(heartbeat_s=0.1, silence_s=4.0, retry_s=0.5, request_s=20.0, start_s=20.0)
"""Timing for a trainer that vanishes; no other is silent so long."""


def missed_batches(path: Path, load_first: Path | None = None, **settings: int) -> list[int]:
    """For each batch of a training in order: how many earlier ones its pull did not see.

    The greatest of them is the one that the status tells.
    """
    missed: list[int] = []
    loaded = 0  # batches that a loaded training has applied

    def look(batch: Batch, rows: np.ndarray) -> None:
        time.sleep(0.005)  # slower than the servers: a trainer that may run ahead does
        same = hash_ints(np.array([7]), SCHEMA.sparse[1].salt, None)[0]
        applied = int(rows[np.flatnonzero(batch.keys == same)[0], 0]) // 5
        missed.append(len(missed) - (applied - loaded))

    with cluster_of() as running:
        trainer = trainer_on(running.join(), CountingModel(look), lease_rows=100, **settings)
        if load_first is not None:
            trainer.load(load_first)
            loaded = trainer._steps
        trainer.fit(path)
        assert max(missed) == running.last_status()["staleness_max"]
    return missed


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_pull_misses_at_most_staleness_batches_and_sometimes_that_many(
    tmp_path: Path, staleness: int
) -> None:
    missed = missed_batches(write_examples(tmp_path / "a.parquet", 200), staleness=staleness)
    assert max(missed) == staleness
    assert min(missed) >= 0


def test_the_bound_rises_while_the_trainer_warms_up(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 400)
    missed = missed_batches(path, staleness=3, warmup_batches=30)
    assert max(missed[:4]) == 0
    assert max(missed[:10]) == 1
    assert max(missed[:20]) == 2
    assert sum(missed[:30]) <= 3 * 30 // 2
    assert max(missed[30:]) == 3


def test_a_training_that_goes_on_runs_ahead_as_far_as_its_steps_allow(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 200)
    with one_trainer() as trainer:
        trainer.fit(path)  # 40 batches
        trainer.save(tmp_path / "checkpoint")
    warmed_up = missed_batches(path, tmp_path / "checkpoint", staleness=3, warmup_batches=40)
    half_way = missed_batches(path, tmp_path / "checkpoint", staleness=2, warmup_batches=80)
    assert max(warmed_up) == 3
    assert max(half_way) == 2
    assert max(half_way[:5]) == 1
    assert max(missed_batches(path, staleness=3, warmup_batches=10_000)) == 0


def test_a_lease_whose_reader_is_slow_ends_once_and_only_when_all_of_it_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_examples(tmp_path / "a.parquet", 60)
    applied_at_end: list[int] = []
    read, end = LeaseReader.batches, Job.end

    def read_slowly(self: LeaseReader, *arguments: int) -> Iterator[Batch]:
        for batch in read(self, *arguments):
            yield batch
            time.sleep(0.05)

    def look_and_end(self: Job, lease: HeldLease) -> object:
        applied_at_end.append(self.client.session.acked_below(lease.stream))
        return end(self, lease)

    monkeypatch.setattr(LeaseReader, "batches", read_slowly)
    monkeypatch.setattr(Job, "end", look_and_end)
    with one_trainer(lease_rows=30) as trainer:
        trainer.fit(path)
        assert (counts_of(trainer.cluster, np.arange(60)) == 1).all()
    assert applied_at_end == [6, 6]


def test_leases_that_are_over_are_not_reported_any_more(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 200)
    with one_trainer(lease_rows=10) as trainer:
        trainer.fit(path)
        assert trainer.cluster.client.member.progress()["streams"] == []


def test_an_heir_reports_from_the_batch_on_at_which_it_resumes(tmp_path: Path) -> None:
    """Else servers would keep all names of the lease, and its own successor begin where the first did."""
    path = write_examples(tmp_path / "a.parquet", 200, row_group_rows=200)
    left = threading.Event()
    acked_below: list[int] = []

    def dying(cluster: Cluster) -> None:
        steps, beats = 0, list[int]()

        def noted() -> dict[str, Any]:
            told = progress()
            beats.extend(below for _stream, below in told["streams"])
            return told

        def look(_batch: Batch, _rows: np.ndarray) -> None:
            nonlocal steps
            steps += 1
            if steps == 20:
                wait_until(lambda: beats[-1:] >= [15], WAIT_S, "a heartbeat with how far it is")
                known = len(beats)  # the next one is sent when that one is answered
                wait_until(lambda: len(beats) > known, WAIT_S, "the coordinator to have heard it")
                vanish(cluster)
                left.set()

        trainer = trainer_on(cluster, CountingModel(look), lease_rows=200)
        progress, cluster.client.member.progress = cluster.client.member.progress, noted
        trainer.fit(path)

    def successor(cluster: Cluster) -> np.ndarray:
        def look(_batch: Batch, _rows: np.ndarray) -> None:
            ((_stream, below),) = cluster.client.member.progress()["streams"]
            acked_below.append(below)

        trainer = trainer_on(cluster, CountingModel(look), lease_rows=200)
        assert left.wait(20)
        trainer.fit(path)
        return counts_of(cluster, np.arange(200))

    with cluster_of(2, trainers=2, timing=SOON_LOST) as running:
        _lost, counts = running.run(dying, successor)
    assert not isinstance(counts, BaseException), counts
    assert (counts == 1).all()
    assert acked_below[0] >= 15
    assert acked_below == sorted(acked_below)


def test_every_step_has_a_seed_of_its_own_that_is_the_same_in_every_run(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", 100)

    def seeds_of(seed: int) -> list[int]:
        seeds: list[int] = []

        class Remembering(CountingModel):
            def loss_and_gradients(self, batch, rows, dense, step_seed):
                seeds.append(step_seed)
                return super().loss_and_gradients(batch, rows, dense, step_seed)

        with cluster_of() as running:
            trainer_on(running.join(), Remembering(), seed=seed).fit(path, epochs=2)
        return seeds

    first = seeds_of(1)
    assert len(set(first)) == len(first) == 40
    assert seeds_of(1) == first
    assert not set(seeds_of(2)) & set(first)


def pushes_and_computes(
    path: Path, monkeypatch: pytest.MonkeyPatch, wait_s: float, **settings: object
) -> list[str]:
    """Return the order of events: ``c0`` when batch 0 is computed, ``p0`` when its push is sent.

    Before it sends the first push, a trainer waits until the second batch is computed, or for ``wait_s``.
    """
    happened: list[str] = []
    second = threading.Event()
    push = ServerRows.push

    def look(_batch: Batch, _rows: np.ndarray) -> None:
        happened.append(f"c{sum(event[0] == 'c' for event in happened)}")
        if len(happened) == 2:
            second.set()

    def push_late(self: ServerRows, *arguments: object) -> object:
        if not any(event[0] == "p" for event in happened):
            second.wait(wait_s)
        happened.append(f"p{sum(event[0] == 'p' for event in happened)}")
        return push(self, *arguments)

    monkeypatch.setattr(ServerRows, "push", push_late)
    with one_trainer(CountingModel(look), lease_rows=100, **settings) as trainer:
        trainer.fit(path)
        assert (counts_of(trainer.cluster, np.arange(40)) == 1).all()
    return happened


def test_a_batch_is_computed_while_the_gradients_of_the_one_before_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    happened = pushes_and_computes(path, monkeypatch, 20.0, staleness=2)
    assert happened[:2] == ["c0", "c1"]
    assert [event for event in happened if event[0] == "p"] == [f"p{number}" for number in range(8)]


def test_with_a_cache_of_rows_a_batch_is_pushed_before_the_next_one_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_examples(tmp_path / "a.parquet", 40)
    happened = pushes_and_computes(
        path, monkeypatch, 0.1, staleness=2, cache=pslib.CacheSettings(age_batches=2)
    )
    assert happened == [f"{what}{number}" for number in range(8) for what in "cp"]


def test_a_push_that_fails_in_its_thread_ends_the_training_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(self: ServerRows, *_arguments: object) -> object:
        raise ConfigurationError("planted")

    monkeypatch.setattr(ServerRows, "push", push)
    path = write_examples(tmp_path / "a.parquet", 40)
    with (
        one_trainer(lease_rows=100, staleness=2) as trainer,
        pytest.raises(ConfigurationError, match="planted"),
    ):
        trainer.fit(path)
