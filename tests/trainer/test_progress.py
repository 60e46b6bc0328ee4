"""Counters of a trainer: time of the stages, keys by field, and what its heartbeats carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pslib.batch import Batch, Ragged
from pslib.schema import Schema
from pslib.trainer.progress import FIELDS_EVERY, KeyCounters, StageTimes
from pslib.wire.counters import BOUNDS_S, TRAINER, is_sound
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.training import trainer_on


class Hand:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    def sleep_s(self, seconds: float) -> None:
        self.time_s += seconds


def batch_of(places: list[list[int]], tags: list[int]) -> Batch:
    sparse = np.array(places, np.int32)
    ragged = Ragged(np.array(tags, np.int32), np.array([0, len(tags)] + [len(tags)] * (len(places) - 1)))
    keys = np.arange(1 + max(*sparse.flat, *tags), dtype=np.uint64)
    rows = len(places)
    return Batch(np.zeros(rows, np.float32), np.zeros((rows, 0), np.float32), keys, sparse, {"tags": ragged})


def test_keys_are_counted_by_field_in_sampled_batches_only() -> None:
    counters = KeyCounters()
    counters.use_fields(Schema(label="y", sparse=["user", "item"], ragged=["tags"]))
    for _ in range(FIELDS_EVERY + 1):
        counters.add(batch_of([[0, 1], [0, 2], [0, 1]], [3, 3, 4, 5]))
    told = counters.counters()
    assert (told["batches"], told["field_batches"]) == (FIELDS_EVERY + 1, 2)
    assert told["keys"] == 10 * told["batches"]
    assert told["distinct_keys"] == 6 * told["batches"]
    assert told["field_names"] == ["user", "item", "tags"]
    assert told["field_keys"] == [6, 6, 8]
    assert told["field_distinct"] == [2, 4, 6]


def test_a_wait_for_a_batch_counts_for_what_the_puller_did_meanwhile() -> None:
    clock = Hand()
    times = StageTimes(clock)
    began = clock.now_s(), times.pace_s, times.pull_s
    times.pace_s, times.pull_s = 2.0, 1.0
    clock.time_s = 10.0
    times.awaited(*began)
    assert (times.wait_pace_s, times.wait_rows_s, times.wait_batch_s) == (2.0, 1.0, 7.0)


def test_a_wait_is_never_longer_than_it_was() -> None:
    clock = Hand()
    times = StageTimes(clock)
    times.pace_s = 5.0  # of which the computing thread saw the last second only
    clock.time_s = 1.0
    times.awaited(0.0, 0.0, 0.0)
    assert (times.wait_pace_s, times.wait_rows_s, times.wait_batch_s) == (1.0, 0.0, 0.0)


def test_sending_within_a_computation_is_not_computing() -> None:
    clock = Hand()
    times = StageTimes(clock)
    times.send_s, clock.time_s = 3.0, 5.0
    times.computed(0.0, 0.0)
    assert times.counters() | {"compute_s": 2.0, "push_wait_s": 3.0} == times.counters()


def test_heartbeats_of_a_training_carry_every_counter(tmp_path: Path) -> None:
    examples = 2000
    with cluster_of() as running:
        client = running.join()
        trainer_on(client, CountingModel()).fit(write_examples(tmp_path / "a.parquet", examples))
        told = client.client.member.progress()
    assert {one.name for one in TRAINER} <= set(told)
    assert all(is_sound(name, value) for name, value in told.items())
    assert told["examples"] == examples
    assert sum(told["ack_counts"]) >= told["batches"] > 0
    assert told["keys"] >= told["distinct_keys"] > 0
    assert len(told["ack_counts"]) == len(BOUNDS_S) + 1
    assert told["compute_s"] > 0
    assert told["read_s"] > 0
    assert told["pushes_resent"] == 0
    assert told["rss_bytes"] > 1 << 20


@pytest.mark.parametrize("name", ["read_s", "compute_s", "push_wait_s", "wait_rows_s", "wait_batch_s"])
def test_times_begin_at_zero(name: str) -> None:
    assert StageTimes(Hand()).counters()[name] == 0.0
