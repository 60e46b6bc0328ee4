"""Admission by exact count and by probability, and refused policies and calls."""

from __future__ import annotations

import numpy as np
import pytest

from cython_ext.table.store import Store
from pslib.shard.stores import store_parts
from pslib.table.initializers import Uniform
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.policies import (
    AGE,
    BLOOM,
    BY_SHOWS,
    CHANCE,
    COUNT,
    NORM,
    SCORE,
    SHOWS,
)
from tests.support.definitions.table import mix64, partition_of
from tests.support.tables.stores import absent_of, pulled, random_keys

SPEC = TableSpec("t", (PartSpec("v", 4, RowwiseAdagrad(0.1), Uniform(0.5)),), seed=3)


def new_store(admission: tuple[int, float, int] = (0, 0.0, 0), partition_bits: int = 2) -> Store:
    return Store(partition_bits, store_parts(SPEC), admission=admission)


def push(store: Store, keys: np.ndarray, salt: int = 0, shows: np.ndarray | None = None) -> None:
    store.push(keys, np.ones((len(keys), store.dim), np.float32), salt=salt, shows=shows)
    store.check_consistency()


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


def test_chance_looks_at_24_bits_of_key_and_salt() -> None:
    store = new_store((CHANCE, 0.5, 0))
    keys = random_keys(300)
    push(store, keys, salt=77)
    salted = mix64(77 ^ 0x9E3779B97F4A7C15)
    expected = [(mix64(key ^ salted) >> 40) * 2.0**-24 >= 0.5 for key in keys.tolist()]
    assert absent_of(store, keys).tolist() == expected


# --- refusals


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"admission": (4, 0.0, 0)}, "admission: kind: expected a whole number in 0..3, got 4"),
        ({"admission": (COUNT, 0, 0)}, r"admission: count: expected a whole number in 1..65535, got 0"),
        ({"admission": (COUNT, 65_536, 0)}, r"count: expected a whole number in 1..65535, got 65536"),
        ({"admission": (COUNT, 1.5, 0)}, r"count: expected a whole number in 1..65535, got 1.5"),
        ({"admission": (BLOOM, 256, 64)}, r"count: expected a whole number in 1..255, got 256"),
        (
            {"admission": (BLOOM, 2, 100)},
            r"filter counters: expected a power of two in 64..134217728, got 100",
        ),
        ({"admission": (BLOOM, 2, 32)}, r"filter counters: expected a power of two"),
        ({"admission": (BLOOM, 2, 1 << 28)}, r"filter counters: expected a whole number in 0..134217728"),
        ({"admission": (CHANCE, 0.0, 0)}, "expected a probability above 0 and at most 1, got 0.0"),
        ({"admission": (CHANCE, 1e-60, 0)}, "expected a probability above 0"),
        ({"admission": (CHANCE, 1.1, 0)}, "expected a probability above 0 and at most 1, got 1.1"),
        ({"admission": (CHANCE, float("nan"), 0)}, "expected a number that is finite"),
        ({"admission": (COUNT, 2)}, "admission: expected a tuple of 3"),
        ({"promotion": (BY_SHOWS, 1.0), "counters": SHOWS}, "promotion: expected narrow_parts above 0"),
        ({"promotion": (BY_SHOWS, 1.0), "narrow_parts": 1}, "promotion: expected .* counters with shows"),
        ({"promotion": (3, 1.0)}, "promotion: kind: expected a whole number in 0..2, got 3"),
        ({"promotion": (1, float("inf"))}, "promotion: number: expected a number that is finite"),
        ({"storage": 4}, "storage: expected a whole number in 0..3, got 4"),
        ({"counters": -1}, "counters: expected a whole number in 0..3, got -1"),
        ({"score": (0.1, "click")}, "score: click coefficient: expected a number"),
        ({"score": 0.1}, "score: expected a tuple of 2, got 0.1"),
    ],
)
def test_a_wrong_policy_is_refused(policies: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Store(2, store_parts(SPEC) * 2, **policies)  # type: ignore[arg-type]


ONE = np.asarray([1], np.uint64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: s.evict(AGE, 1.0),
            r"evict: expected a Store whose rows count last_seen \(bit 0\), got counters=0",
        ),
        (lambda s: s.evict(SCORE, 1.0), r"evict: expected .* shows and clicks \(bit 1\)"),
        (lambda s: s.evict(3, 1.0), "evict: rule: expected a whole number in 0..2, got 3"),
        (lambda s: s.evict(NORM, float("nan")), "evict: number: expected a number that is finite"),
        (lambda s: s.evict_share(AGE, 0.5), "evict_share: expected a Store whose rows count last_seen"),
        (lambda s: s.evict_share(NORM, 0.0), "share: expected a number above 0 and at most 1, got 0.0"),
        (lambda s: s.evict_share(NORM, 1.5), "share: expected a number above 0"),
        (lambda s: s.decay(1.5), "decay: factor: expected a number in 0..1, got 1.5"),
        (lambda s: s.decay(-0.5), "decay: factor"),
        (lambda s: s.decay(0.5, [1]), "decay: partitions: expected C-contiguous uint32"),
        (lambda s: s.decay(0.5, np.asarray([4], np.uint32)), r"partitions: expected numbers in 0..3, got 4"),
        (
            lambda s: s.import_counts(0, ONE, np.ones(1, np.uint32)),
            "expected a Store with admission by exact",
        ),
        (
            lambda s: s.import_filter(0, np.ones(64, np.uint8)),
            "import_filter: counters: expected length 0, got 64",
        ),
        (lambda s: s.missing(np.ones(1)), "missing: keys: expected"),
        (lambda s: s.export_counts(4), "export_counts: partition: expected"),
    ],
)
def test_a_wrong_call_is_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call(new_store())


def test_counts_are_imported_where_they_belong_and_within_their_range() -> None:
    store = new_store((COUNT, 5, 0))
    mine = partition_of(1, 2)
    for count in (0, 65_536):
        with pytest.raises(ValueError, match=r"import_counts: counts: expected 1..65535"):
            store.import_counts(mine, ONE, np.asarray([count], np.uint32))
    with pytest.raises(ValueError, match="import_counts: expected keys of partition"):
        store.import_counts((mine + 1) % 4, ONE, np.ones(1, np.uint32))
    store.import_counts(mine, ONE, np.asarray([65_535], np.uint32))
    assert store.export_counts(mine)[1].tolist() == [65_535]
