"""What a store foresees of a push, for the memory limit: keys without rows, rows that become wide, memory."""

from __future__ import annotations

import os

import numpy as np
import pytest

from cython_ext.table.store import Store
from pslib.shard.stores import make_store
from pslib.table.policies import Compact, Score
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.table import partition_of

SHOWS = TableSpec("t", (PartSpec("w", 1), PartSpec("v", 16)), compact=Compact("v", shows=3))
SCORE = TableSpec(
    "t", SHOWS.parts, compact=Compact("v", score=2), score=Score(nonclick=0.5, click=2.0, decay=1.0)
)


def push(
    store: Store, keys: np.ndarray, shows: np.ndarray | None = None, clicks: np.ndarray | None = None
) -> None:
    store.push(keys, np.ones((keys.size, store.dim), np.float32), shows=shows, clicks=clicks)


def some(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint64)


@pytest.mark.parametrize("spec", [SHOWS, SCORE], ids=["shows", "score"])
@pytest.mark.parametrize("seed", range(4))
def test_keys_that_are_made_and_rows_that_become_wide_are_those_of_the_push(
    spec: TableSpec, seed: int
) -> None:
    rng, store = np.random.default_rng(seed), make_store(spec, 3)
    for _ in range(40):
        keys = rng.choice(some(300), rng.integers(1, 60), replace=False)
        shows = rng.integers(1, 4, keys.size).astype(np.float32) if rng.random() < 0.7 else None
        clicks = rng.integers(0, 2, keys.size).astype(np.float32) if rng.random() < 0.5 else None
        made, widened, _ = store.foresee(keys, shows, clicks)
        before = store.stats()
        push(store, keys, shows, clicks)
        after = store.stats()
        assert (made, widened) == (
            after["rows"] - before["rows"],
            after["promoted"] - before["promoted"],
        )
        store.erase(rng.choice(some(300), 20, replace=False))


def test_memory_is_foreseen_for_rows_that_find_no_place() -> None:
    store, key = make_store(SHOWS, 0), 0
    assert store.foresee(some(1))[2] > 0
    push(store, some(1))
    while not store.foresee(some(1, key + 1))[2]:
        key += 1
        push(store, some(1, key))
    assert store.foresee(some(1))[2] == 0  # it has its row
    assert store.foresee(some(1), np.float32([3]))[2] > 0  # a wide one, of which there is none
    store.erase(some(1))
    assert store.foresee(some(1, key + 1))[2] == 0  # the place that it has left
    assert store.foresee(some(2, key + 1))[2] > 0


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="with the address sanitizer each unit is a slab of its own; the plain build runs it",
)
def test_units_that_a_slab_has_left_take_no_memory() -> None:
    store = make_store(SHOWS, 4)
    push(store, some(3000))
    push(store, some(10), np.full(10, 3, np.float32))
    before = store.stats()
    assert store.foresee(some(200, 10), np.full(200, 3, np.float32)) == (0, 200, 0)
    push(store, some(200, 10), np.full(200, 3, np.float32))
    assert store.stats()["row_bytes"] > before["row_bytes"]


def test_rows_that_are_put_in_are_foreseen_as_they_are() -> None:
    store = make_store(SHOWS, 2)
    wide, narrow = store.foresee_rows(some(100)), store.foresee_rows(some(100), narrow=True)
    assert wide[:2] == narrow[:2] == (100, 0)
    assert wide[2] > 2 * narrow[2] > 0
    push(store, some(100))
    assert store.foresee_rows(some(100), narrow=True) == (0, 0, 0)
    assert store.foresee_rows(some(100))[:2] == (0, 100)


def test_partitions_that_hold_something_are_counted() -> None:
    store = make_store(SHOWS, 6)
    assert store.held() == (0, 0, 0)
    keys = some(20)
    push(store, keys)
    partitions = len({partition_of(int(key), 6) for key in keys})
    assert store.held() == (partitions, 0, partitions)
    push(store, keys[:5], np.full(5, 3, np.float32))
    wide = len({partition_of(int(key), 6) for key in keys[:5]})
    assert store.held()[:2] == (partitions, wide)
