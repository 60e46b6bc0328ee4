"""Rows that are evicted or become wide: by norm, age and score, as a share of all, by what they count."""

from __future__ import annotations

import numpy as np
import pytest

from cython_ext.table.store import Store
from pslib.shard.stores import store_parts
from pslib.table.initializers import Uniform
from pslib.table.optimizers import SGD, RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.policies import AGE, BY_SCORE, BY_SHOWS, LAST_SEEN, NORM, SCORE, SHOWS
from tests.support.definitions.table import partition_of
from tests.support.tables.stores import absent_of, pulled, random_keys

SPEC = TableSpec("t", (PartSpec("v", 4, RowwiseAdagrad(0.1), Uniform(0.5)),), seed=3)


def new_store(partition_bits: int = 2) -> Store:
    return Store(partition_bits, store_parts(SPEC))


def push(store: Store, keys: np.ndarray) -> None:
    store.push(keys, np.ones((len(keys), store.dim), np.float32))


def filled(rows: int) -> tuple[Store, np.ndarray]:
    """A store with this many rows, and their keys."""
    store, keys = new_store(), random_keys(rows)
    push(store, keys)
    return store, keys


def test_norms_are_those_of_all_weights() -> None:
    store, keys = filled(3000)
    norms = np.linalg.norm(pulled(store, keys).astype(np.float64), axis=1)
    limit = float(np.median(norms))
    assert store.evict(NORM, limit) == store.stats()["evicted_norm"] == (norms < limit).sum()
    store.check_consistency()
    assert absent_of(store, keys).tolist() == (norms < limit).tolist()


def test_only_chosen_partitions_are_evicted() -> None:
    store, keys = filled(400)
    gone = [partition_of(key, 2) in (1, 3) for key in keys.tolist()]
    assert store.evict(NORM, 1e9, partitions=np.asarray([3, 1, 3], np.uint32)) == sum(gone)
    assert absent_of(store, keys).tolist() == gone


@pytest.mark.parametrize("share", [0.001, 0.25, 0.9, 1.0])
def test_a_share_is_exact_and_takes_the_worst(share: float) -> None:
    store, keys = filled(5000)
    norms = np.linalg.norm(pulled(store, keys).astype(np.float64), axis=1)
    wanted = int(np.ceil(share * 5000))
    assert store.evict_share(NORM, share) == store.stats()["evicted_share"] == wanted
    store.check_consistency()
    gone = absent_of(store, keys) == 1
    assert gone.sum() == wanted
    assert norms[gone].max() <= norms[~gone].min(initial=np.inf) * (1 + 1e-6)


def test_of_equal_rows_those_that_leave_are_spread_over_partitions() -> None:
    store = new_store(partition_bits=4)
    keys = random_keys(8000)
    store.assign(keys, np.ones((8000, 4), np.float32), np.ones((8000, 1), np.float32))
    before = [store.partition_rows(partition) for partition in range(16)]
    assert store.evict_share(NORM, 0.25) == 2000
    after = [store.partition_rows(partition) for partition in range(16)]
    assert all(abs(had - has - had / 4) <= 1 for had, has in zip(before, after, strict=True))


def test_rows_of_no_number_stay_and_leave_last() -> None:
    store = new_store()
    keys = random_keys(10)
    weights = np.ones((10, 4), np.float32)
    weights[:3, 1] = np.nan
    store.assign(keys, weights, np.ones((10, 1), np.float32))
    assert store.evict_share(NORM, 0.5) == 5
    assert store.evict(NORM, 1e30) == 2
    assert store.missing(keys[:3]) == 0


def test_numbers_of_evicted_rows_are_used_again_in_their_order() -> None:
    store = new_store(partition_bits=0)
    keys = np.arange(1, 9, dtype=np.uint64)
    weights = np.ones((8, 4), np.float32)
    weights[[2, 5]] = 0
    store.assign(keys, weights, np.ones((8, 1), np.float32))
    assert store.evict(NORM, 0.5) == 2
    store.assign(np.asarray([100, 101], np.uint64), weights[:2], np.ones((2, 1), np.float32))
    assert store.export_partition(0)[0].tolist() == [1, 2, 101, 4, 5, 100, 7, 8]


# --- counters of rows: age, score, promotion

COUNTING = TableSpec("t", (PartSpec("w", 1, SGD(0.1)), PartSpec("v", 4, RowwiseAdagrad(0.1), Uniform(0.5))))


def counting_store(promotion: tuple[int, float] = (0, 0.0), narrow_parts: int = 0) -> Store:
    return Store(
        1,
        store_parts(COUNTING),
        narrow_parts,
        counters=LAST_SEEN | SHOWS,
        promotion=promotion,
        score=(0.5, 2.0),
    )


def show(store: Store, keys: np.ndarray, now: float = 0.0, shows: float = 1.0, clicks: float = 0.0) -> None:
    store.push(
        keys,
        np.ones((len(keys), 5), np.float32),
        now=now,
        shows=np.full(len(keys), shows, np.float32),
        clicks=np.full(len(keys), clicks, np.float32),
    )
    store.check_consistency()


def test_rows_leave_that_were_seen_longer_ago_than_the_limit() -> None:
    store = counting_store()
    keys = random_keys(30)
    for now in range(3):
        show(store, keys[10 * now : 10 * now + 10], now=float(now))
    show(store, keys[:1], now=5.0)
    assert store.evict(AGE, 4.0, now=5.0) == 9  # of 0, all but the one; 5 - 1 is not above 4
    assert store.missing(keys[:10]) == store.stats()["evicted_age"] == 9
    assert store.evict(AGE, 4.0, now=4.0) == 0


def test_rows_leave_whose_score_has_faded() -> None:
    store = counting_store()
    shown, clicked = random_keys(10), random_keys(10, 1)
    show(store, shown, shows=4.0)
    show(store, clicked, shows=4.0, clicks=1.0)
    assert store.evict(SCORE, 2.0) == 0  # scores are 4 / 2 and 3 / 2 + 2
    store.decay(0.5)
    assert store.evict(SCORE, 1.5) == store.stats()["evicted_score"] == 10
    assert (store.missing(shown), store.missing(clicked)) == (10, 0)
    assert store.evict(SCORE, 1.8) == 10


def test_the_oldest_share_leaves_first() -> None:
    store = counting_store()
    keys = random_keys(100)
    for now in range(10):
        show(store, keys[10 * now : 10 * now + 10], now=float(now))
    assert store.evict_share(AGE, 0.3) == 30
    assert (store.missing(keys[:30]), store.missing(keys[30:])) == (30, 0)


@pytest.mark.parametrize(("promotion", "clicks"), [((BY_SHOWS, 3.0), 0.0), ((BY_SCORE, 3.0), 1.0)])
def test_a_row_becomes_wide_at_the_end_of_the_push_in_which_it_has_proved_itself(
    promotion: tuple[int, float], clicks: float
) -> None:
    store = counting_store(promotion, narrow_parts=1)
    keys = random_keys(200)
    first = pulled(store, keys)
    show(store, keys, shows=2.0)
    assert store.stats()["narrow_rows"] == 200
    show(store, keys[:50], shows=1.5, clicks=clicks)
    stats = store.stats()
    assert (stats["rows"], stats["narrow_rows"], stats["promoted"]) == (200, 150, 50)
    assert (
        pulled(store, keys)[:, 1:].tobytes() == first[:, 1:].tobytes()
    )  # wide parts step from the next push on
    show(store, keys[:50])
    assert (pulled(store, keys[:50])[:, 1:] < first[:50, 1:]).all()


def test_a_key_that_proves_itself_in_the_middle_of_a_push_is_wide_after_it() -> None:
    store = counting_store((BY_SHOWS, 2.0), narrow_parts=1)
    keys = np.asarray([4, 4, 4, 4, 9], np.uint64)
    first = pulled(store, keys)
    show(store, keys)
    assert store.stats()["narrow_rows"] == store.stats()["promoted"] == 1
    assert pulled(store, keys)[:, 1:].tobytes() == first[:, 1:].tobytes()
    assert pulled(store, keys)[0, 0] == pytest.approx(first[0, 0] - 0.4)
