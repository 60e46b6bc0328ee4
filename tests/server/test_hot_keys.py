"""Share of pulled keys that fall on the hottest 1 %: close to the exact one, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from pslib.server.hot_keys import KEYS_MAX, KEYS_MIN, HotKeys, hot_share


@pytest.mark.parametrize(("exponent", "keys"), [(1.1, 100_000), (1.5, 100_000), (0.0, 100_000), (1.1, 3_000)])
def test_the_share_is_close_to_that_of_all_keys(exponent: float, keys: int) -> None:
    random = np.random.default_rng(5)
    weights = 1.0 / np.arange(1, keys + 1) ** exponent
    hot, exact = HotKeys(), Counter[int]()
    for _ in range(200):
        drawn = np.unique(random.choice(keys, 2_000, p=weights / weights.sum())).astype(np.uint64)
        hot.add([drawn])
        exact.update(drawn.tolist())
    estimated, right = hot_share(hot.counts()), hot_share(list(exact.values()))
    assert estimated is not None
    assert right is not None
    assert abs(estimated - right) < 0.03


def test_memory_is_bounded_and_a_key_that_stays_keeps_its_count() -> None:
    hot = HotKeys()
    for number in range(50):
        hot.add([np.arange(number * 5_000, (number + 1) * 5_000, dtype=np.uint64)])
        assert len(hot.counts()) <= KEYS_MAX
    hot.add([np.arange(50 * 5_000, dtype=np.uint64)])
    assert set(hot.counts()) == {2}


def test_a_pull_of_a_million_keys_is_sampled_before_it_is_counted() -> None:
    keys = np.arange(1_000_000, dtype=np.uint64)
    hot = HotKeys()
    tracemalloc.start()
    try:
        hot.add([keys])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * keys.nbytes  # a dict of all of them takes 20 times as much
    assert KEYS_MAX / 4 < len(hot.counts()) <= KEYS_MAX


def test_tables_are_counted_together_and_few_keys_give_no_share() -> None:
    hot = HotKeys()
    hot.add([np.arange(KEYS_MIN - 2, dtype=np.uint64), np.array([0, KEYS_MIN - 2], np.uint64)])
    assert sorted(hot.counts())[-1] == 2
    assert hot_share(hot.counts()) is None
    hot.add([np.array([KEYS_MIN - 1], np.uint64)])
    assert hot_share(hot.counts()) == pytest.approx(3 / (KEYS_MIN + 1))


@pytest.mark.parametrize("key", [0, 7])
def test_a_key_that_a_pull_has_many_times_counts_once_and_drops_no_other(key: int) -> None:
    hot = HotKeys()
    hot.add([np.arange(KEYS_MIN, dtype=np.uint64)])
    hot.add([np.full(KEYS_MAX + 1, key, np.uint64)])
    assert sorted(hot.counts()) == [1] * (KEYS_MIN - 1) + [2]
