"""Counters of heartbeats: their definitions, which values are sound, and histograms of durations."""

from __future__ import annotations

from collections import Counter as Count
from math import inf, nan

import pytest

from pslib.wire.counters import (
    BOUNDS_S,
    COORDINATOR,
    LARGEST_COUNTERS,
    SERVER,
    SERVER_COUNTERS,
    TRAINER,
    TRAINER_COUNTERS,
    Durations,
    is_sound,
)


@pytest.mark.parametrize("counters", [SERVER, TRAINER, COORDINATOR], ids=["server", "trainer", "coordinator"])
def test_each_counter_of_a_role_is_defined_once(counters: tuple) -> None:
    assert max(Count(one.name for one in counters).values()) == 1
    assert all(one.help.endswith(".") for one in counters)


def test_histograms_have_bounds_and_a_sum() -> None:
    for one in (*SERVER, *TRAINER):
        assert bool(one.bounds) == bool(one.sum_name) == (one.kind == "histogram")
        assert list(one.bounds) == sorted(set(one.bounds))


def test_what_is_summed_over_members_is_a_number() -> None:
    summed = {one.name: one for one in (*SERVER, *TRAINER) if one.total}
    assert set(summed) == {*SERVER_COUNTERS, *TRAINER_COUNTERS, *LARGEST_COUNTERS}
    assert all(one.kind != "histogram" for one in summed.values())


@pytest.mark.parametrize(
    ("name", "value", "sound"),
    [
        ("examples", 7, True),
        ("examples", "7", False),
        ("examples", True, False),
        ("rss_bytes", inf, False),
        ("loss_sum", nan, True),
        ("read_s", nan, False),
        ("ack_counts", [0] * (len(BOUNDS_S) + 1), True),
        ("ack_counts", [0] * len(BOUNDS_S), False),
        ("ack_counts", [-1] + [0] * len(BOUNDS_S), False),
        ("staleness_counts", ["many"] * 33, False),
        ("waits", [["server 1", "push", 2.0]], True),
    ],
)
def test_a_value_is_sound_that_has_the_kind_of_its_counter(name: str, value: object, sound: bool) -> None:
    assert is_sound(name, value) is sound


def test_equal_durations_are_counted_together() -> None:
    durations = Durations()
    durations.add(0.25, times=3)
    assert durations.counts[BOUNDS_S.index(0.25)] == 3
    assert durations.sum_s == 0.75
