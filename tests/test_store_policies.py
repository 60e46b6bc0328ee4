"""Which keys get rows and which rows leave: admission, decay, eviction, and memory that is given back."""

from __future__ import annotations

import numpy as np
import pytest

from cython_ext.store import Store
from pslib.initializers import Uniform
from pslib.optimizers import RowwiseAdagrad
from pslib.tables import PartSpec, TableSpec
from tests.definitions import mix64, partition_of, store_parts

SPEC = TableSpec("t", (PartSpec("v", 4, RowwiseAdagrad(0.1), Uniform(0.5)),), seed=3)
ALWAYS, COUNT, BLOOM, CHANCE = range(4)
AGE, NORM, SCORE = range(3)


def new_store(admission: tuple[int, float, int] = (0, 0.0, 0), partition_bits: int = 2) -> Store:
    return Store(partition_bits, store_parts(SPEC), admission=admission)


def random_keys(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, np.uint64)


def push(store: Store, keys: np.ndarray, salt: int = 0, shows: np.ndarray | None = None) -> None:
    store.push(keys, np.ones((len(keys), store.dim), np.float32), salt=salt, shows=shows)
    store.check_consistency()


def pulled(store: Store, keys: np.ndarray) -> np.ndarray:
    out = np.empty((len(keys), store.dim), np.float32)
    store.pull(keys, out)
    return out


# --- exact count


def test_a_counted_key_has_no_row_until_the_push_that_reaches_the_count() -> None:
    store, plain = new_store((COUNT, 3, 0)), new_store()
    keys = random_keys(50)
    first = pulled(store, keys)
    for turned_away in (50, 100):
        push(store, keys)
        stats = store.stats()
        assert (stats["rows"], stats["row_bytes"], stats["counted_keys"]) == (0, 0, 50)
        assert (stats["turned_away"], stats["admitted"]) == (turned_away, 0)
        assert store.missing(keys) == store.pull(keys, np.empty_like(first)) == 50
        assert pulled(store, keys).tobytes() == first.tobytes()
    push(store, keys)
    push(plain, keys)
    assert pulled(store, keys).tobytes() == pulled(plain, keys).tobytes()
    stats = store.stats()
    assert (stats["rows"], stats["counted_keys"], stats["turned_away"], stats["admitted"]) == (50, 0, 100, 50)


def test_each_occurrence_in_a_push_counts() -> None:
    store = new_store((COUNT, 3, 0))
    push(store, np.asarray([7, 8, 7, 7, 7, 8], np.uint64))
    plain = new_store()
    push(plain, np.asarray([7, 7], np.uint64))
    assert store.missing(np.asarray([7, 8], np.uint64)) == 1
    assert (
        pulled(store, np.asarray([7], np.uint64)).tobytes()
        == pulled(plain, np.asarray([7], np.uint64)).tobytes()
    )
    assert store.stats()["turned_away"] == 4


def test_a_count_takes_shows_rounded_down_and_at_least_one() -> None:
    store = new_store((COUNT, 65_535, 0), 0)
    keys = np.arange(1, 6, dtype=np.uint64)
    push(store, keys, shows=np.asarray([0.25, 1.75, 2.0, 65_534.5, 65_535.0], np.float32))
    assert [counts.tolist() for counts in store.export_counts(0)] == [[1, 2, 3, 4], [1, 1, 2, 65_534]]
    assert store.missing(keys) == 4
    push(store, keys[3:4])
    assert store.missing(keys) == 3
    push(store, keys[:1], shows=np.asarray([1e30], np.float32))
    assert store.missing(keys) == 2


def test_a_count_of_one_admits_every_key_at_once() -> None:
    for admission in ((COUNT, 1, 0), (BLOOM, 1, 64), (CHANCE, 1.0, 0)):
        store = new_store(admission)
        push(store, random_keys(100))
        stats = store.stats()
        assert (stats["rows"], stats["admitted"], stats["turned_away"], stats["filter_bytes"]) == (
            100,
            100,
            0,
            0,
        )


def test_erasing_a_counted_key_forgets_its_count() -> None:
    store = new_store((COUNT, 2, 0))
    keys = random_keys(1000)
    push(store, keys)
    assert store.erase(keys[:990]) == 0
    store.check_consistency()
    assert store.stats()["counted_keys"] == 10
    push(store, keys)
    assert store.missing(keys) == 990
    store.erase(keys)
    stats = store.stats()
    assert stats["counted_keys"] == stats["index_bytes"] == 0


def test_an_evicted_key_has_to_earn_its_row_again() -> None:
    store = new_store((COUNT, 2, 0))
    keys = random_keys(20)
    push(store, np.concatenate([keys, keys]))
    assert store.evict(NORM, 1e9) == 20
    push(store, keys)
    assert store.missing(keys) == 20


def test_an_assigned_or_imported_row_ends_the_count() -> None:
    store = new_store((COUNT, 9, 0), 0)
    keys = np.arange(40, dtype=np.uint64)
    push(store, keys)
    rows = np.ones((20, 4), np.float32), np.ones((20, 1), np.float32)
    store.assign(keys[:20], *rows)
    store.import_partition(0, keys[10:30], *rows)
    store.check_consistency()
    assert store.stats()["counted_keys"] == 10
    assert store.missing(keys) == 10


def test_decay_floors_counts_and_forgets_those_at_zero() -> None:
    store = new_store((COUNT, 100, 0), 0)
    keys = np.arange(1, 9, dtype=np.uint64)
    push(store, keys, shows=np.arange(1, 9, dtype=np.float32))
    store.decay(0.4)
    store.check_consistency()
    assert [counts.tolist() for counts in store.export_counts(0)] == [[3, 4, 5, 6, 7, 8], [1, 1, 2, 2, 2, 3]]
    store.decay(0.0)
    assert store.stats()["counted_keys"] == store.stats()["index_bytes"] == 0


def test_counts_move_with_their_partition() -> None:
    store, other = new_store((COUNT, 5, 0)), new_store((COUNT, 5, 0))
    keys = random_keys(500)
    for _ in range(3):
        push(store, keys)
    push(store, keys[:100], shows=np.full(100, 9, np.float32))
    for partition in store.partitions().tolist():
        other.import_counts(partition, *store.export_counts(partition))
        other.import_partition(partition, *store.export_partition(partition))
        other.import_counts(partition, *store.export_counts(partition))
    other.check_consistency()
    for some in (store, other):
        push(some, keys)
        assert some.stats()["counted_keys"] == 400
        push(some, keys)
        assert some.rows == 500
    assert store.drop_partition(1) == other.drop_partition(1)


def test_a_partition_of_counted_keys_alone_is_listed_and_dropped() -> None:
    store = new_store((COUNT, 5, 0))
    keys = random_keys(50)
    push(store, keys)
    assert store.partitions().tolist() == [0, 1, 2, 3]
    assert store.partition_rows(1) == store.drop_partition(1) == 0
    assert store.partitions().tolist() == [0, 2, 3]
    store.check_consistency()


# --- probability


def test_the_share_that_is_admitted_by_chance_is_binomial_and_named_by_the_salt() -> None:
    count, chance = 100_000, 0.3
    keys = random_keys(count)
    stores = [new_store((CHANCE, chance, 0), bits) for bits in (0, 5)]
    for store, parts in zip(stores, (1, 7), strict=True):
        for some in np.array_split(keys, parts):
            push(store, some, salt=12)
    admitted = [set(np.flatnonzero(absent_of(store, keys) == 0).tolist()) for store in stores]
    assert admitted[0] == admitted[1]
    five_deviations = 5 * np.sqrt(count * chance * (1 - chance))
    assert abs(len(admitted[0]) - count * chance) < five_deviations
    push(stores[0], keys, salt=13)
    assert abs(stores[0].rows - count * (1 - (1 - chance) ** 2)) < five_deviations
    assert stores[0].stats()["admitted"] == stores[0].rows


def absent_of(store: Store, keys: np.ndarray) -> np.ndarray:
    return np.asarray([store.missing(keys[place : place + 1]) for place in range(len(keys))])


def test_chance_looks_at_24_bits_of_key_and_salt() -> None:
    store = new_store((CHANCE, 0.5, 0))
    keys = random_keys(300)
    push(store, keys, salt=77)
    salted = mix64(77 ^ 0x9E3779B97F4A7C15)
    expected = [(mix64(key ^ salted) >> 40) * 2.0**-24 >= 0.5 for key in keys.tolist()]
    assert absent_of(store, keys).tolist() == expected


# --- eviction


def test_norms_are_those_of_all_weights() -> None:
    store = new_store()
    keys = random_keys(3000)
    push(store, keys)
    norms = np.linalg.norm(pulled(store, keys).astype(np.float64), axis=1)
    limit = float(np.median(norms))
    assert store.evict(NORM, limit) == store.stats()["evicted_norm"] == (norms < limit).sum()
    store.check_consistency()
    assert absent_of(store, keys).tolist() == (norms < limit).tolist()


def test_only_chosen_partitions_are_evicted() -> None:
    store = new_store()
    keys = random_keys(400)
    push(store, keys)
    gone = [partition_of(key, 2) in (1, 3) for key in keys.tolist()]
    assert store.evict(NORM, 1e9, partitions=np.asarray([3, 1, 3], np.uint32)) == sum(gone)
    assert absent_of(store, keys).tolist() == gone


@pytest.mark.parametrize("share", [0.001, 0.25, 0.9, 1.0])
def test_a_share_is_exact_and_takes_the_worst(share: float) -> None:
    store = new_store()
    keys = random_keys(5000)
    push(store, keys)
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
