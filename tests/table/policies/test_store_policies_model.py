"""A Store with policies is a PolicyTable: any sequence of records gives its rows, counts and filters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import store_parts
from pslib.table.initializers import Normal, Uniform
from pslib.table.optimizers import SGD, Adagrad, RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.policies import (
    AGE,
    ALWAYS,
    BLOOM,
    BY_SCORE,
    BY_SHOWS,
    CHANCE,
    COUNT,
    LAST_SEEN,
    NEVER,
    NORM,
    SCORE,
    SHOWS,
    PolicyTable,
    filter_places,
)
from tests.support.definitions.table import partition_of
from tests.support.tables.store_rules import KEYS, SEEDS, UNIVERSE, StoreRules

SPEC = TableSpec(
    "embedding",
    (
        PartSpec("w", 2, Adagrad(0.1), Normal(0.1)),
        PartSpec("v", 5, RowwiseAdagrad(0.1), Uniform(0.1)),
        PartSpec("u", 3, SGD(0.1), Uniform(0.2)),
    ),
    seed=5,
)

FACTORS = st.sampled_from([0.0, 0.1, 0.5, 0.98, 1.0])
ADMISSIONS = st.one_of(
    st.just((ALWAYS, 0.0, 0)),
    st.tuples(st.just(COUNT), st.sampled_from([1, 2, 5, 65_535]), st.just(0)),
    st.tuples(st.just(BLOOM), st.sampled_from([1, 2, 5, 255]), st.sampled_from([64, 512])),
    st.tuples(st.just(CHANCE), st.sampled_from([0.1, 0.5, 1.0]), st.just(0)),
)
PROMOTIONS = st.tuples(st.sampled_from([NEVER, BY_SHOWS, BY_SCORE]), st.sampled_from([-1.0, 0.5, 3.0]))
SCORES = st.sampled_from([(0.1, 1.0), (-0.5, 2.0)])

HAPPENED = (
    "turned_away",
    "admitted",
    "promoted",
    "evicted_age",
    "evicted_norm",
    "evicted_score",
    "evicted_share",
)


def rows_of(store: Store) -> dict[int, tuple[bool, bytes, bytes]]:
    """Every row of a Store as `PolicyTable.row_bytes` shows it."""
    found = {}
    for partition in store.partitions().tolist():
        for narrow in (False, True):
            keys, weights, state = store.export_partition(partition, narrow)
            for key, some, more in zip(keys.tolist(), weights, state, strict=True):
                found[key] = (narrow, some.tobytes(), more.tobytes())
    return found


def counts_of(store: Store) -> dict[int, int]:
    counts = {}
    for partition in store.partitions().tolist():
        counts |= dict(zip(*(some.tolist() for some in store.export_counts(partition)), strict=True))
    return counts


def filters_of(store: Store) -> dict[int, list[int]]:
    filters = {
        partition: store.export_filter(partition).tolist() for partition in store.partitions().tolist()
    }
    return {partition: filter for partition, filter in filters.items() if any(filter)}


def copy_of(store: Store, policies: dict[str, object]) -> Store:
    moved = Store(store.partition_bits, store_parts(SPEC), store.narrow_parts, **policies)  # type: ignore[arg-type]
    for partition in store.partitions().tolist():
        for narrow in (False, True):
            moved.import_partition(partition, *store.export_partition(partition, narrow), narrow=narrow)
        moved.import_counts(partition, *store.export_counts(partition))
        moved.import_filter(partition, store.export_filter(partition))
    return moved


class StoreAgainstPolicies(StoreRules):
    spec = SPEC

    @initialize(
        partition_bits=st.integers(0, 4),
        narrow_parts=st.integers(1, 2),
        admission=ADMISSIONS,
        promotion=PROMOTIONS,
        score=SCORES,
        storage=st.integers(0, 3),
    )
    def begin(
        self,
        partition_bits: int,
        narrow_parts: int,
        admission: tuple[int, float, int],
        promotion: tuple[int, float],
        score: tuple[float, float],
        storage: int,
    ) -> None:
        self.policies: dict[str, object] = {
            "storage": storage,
            "counters": LAST_SEEN | SHOWS,
            "admission": admission,
            "promotion": promotion,
            "score": score,
        }
        self.store = Store(partition_bits, store_parts(SPEC), narrow_parts, **self.policies)  # type: ignore[arg-type]
        self.model = PolicyTable(SPEC, partition_bits, narrow_parts, **self.policies)  # type: ignore[arg-type]
        self.happened_before = dict.fromkeys(HAPPENED, 0)

    @rule(keys=KEYS, seed=SEEDS, narrow=st.booleans(), now=st.integers(0, 40))
    def push(self, keys: np.ndarray, seed: int, narrow: bool, now: int) -> None:
        rng = np.random.default_rng(seed)
        gradients = rng.standard_normal((len(keys), SPEC.dim)).astype(np.float32)
        shows = rng.choice(np.asarray([0.3, 1, 2.5, 7], np.float32), len(keys)) if seed % 3 else None
        clicks = rng.choice(np.asarray([0, 0.5, 1], np.float32), len(keys)) if seed % 5 else None
        for table in (self.store, self.model):
            table.push(keys, gradients, narrow, salt=seed, now=float(now), shows=shows, clicks=clicks)

    @rule(seed=SEEDS, now=st.integers(0, 40))
    def push_all(self, seed: int, now: int) -> None:
        self.push(np.random.default_rng(seed).permutation(UNIVERSE), seed, False, now)

    @rule(keys=KEYS)
    def pull(self, keys: np.ndarray) -> None:
        have, want = (np.full((len(keys), SPEC.dim), np.nan, np.float32) for _ in range(2))
        assert self.store.pull(keys, have) == self.model.pull(keys, want) == self.store.missing(keys)
        assert have.tobytes() == want.tobytes()

    def some_partitions(self, seed: int) -> np.ndarray | None:
        count = 1 << self.store.partition_bits
        return None if seed % 2 else np.random.default_rng(seed).integers(0, count, count // 2 + 1, np.uint32)

    @rule(factor=FACTORS, seed=SEEDS)
    def decay(self, factor: float, seed: int) -> None:
        for table in (self.store, self.model):
            table.decay(factor, self.some_partitions(seed))

    @rule(which=st.sampled_from([AGE, NORM, SCORE]), number=st.floats(-1, 4, width=32), seed=SEEDS)
    def evict(self, which: int, number: float, seed: int) -> None:
        gone = [
            table.evict(which, number, 20.0, self.some_partitions(seed)) for table in (self.store, self.model)
        ]
        assert gone[0] == gone[1]

    @rule(order=st.sampled_from([AGE, NORM, SCORE]), share=st.sampled_from([0.01, 0.3, 0.9, 1.0]))
    def evict_share(self, order: int, share: float) -> None:
        count = self.store.evict_share(order, share)
        gone = set(self.model.table) - set(rows_of(self.store))
        assert len(gone) == count
        self.model.evict_these(order, share, gone)

    @rule()
    def move_to_another_store(self) -> None:
        self.happened_before = {name: self.happened(name) for name in HAPPENED}
        self.store = copy_of(self.store, self.policies)

    def happened(self, name: str) -> int:
        return self.happened_before[name] + self.store.stats()[name]

    @invariant()
    def tables_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store.check_consistency()
        assert rows_of(self.store) == {key: self.model.row_bytes(key) for key in self.model.table}
        assert counts_of(self.store) == self.model.counted
        assert filters_of(self.store) == {
            p: filter for p, filter in self.model.filters.items() if any(filter)
        }
        assert {name: self.happened(name) for name in HAPPENED} == {
            name: self.model.happened[name] for name in HAPPENED
        }
        stats = self.store.stats()
        assert (stats["rows"], stats["counted_keys"]) == (self.model.rows, len(self.model.counted))
        assert stats["filter_bytes"] == len(self.model.filters) * self.model.admission[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", vector_levels())
def test_any_sequence_of_records_gives_what_dicts_give(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSLIB_VECTORS", level)
    chosen = settings(max_examples=60, stateful_step_count=16, deadline=None)
    run_state_machine_as_test(StoreAgainstPolicies, settings=chosen)


@settings(deadline=None, max_examples=25)
@given(
    records=st.lists(st.tuples(KEYS, SEEDS), min_size=1, max_size=6),
    bits=st.integers(1, 20),
    pieces=st.integers(1, 4),
    admission=ADMISSIONS.filter(lambda admission: admission[0] != BLOOM),
    promotion=PROMOTIONS,
)
def test_the_same_records_give_the_same_rows_whatever_the_partitions_and_batches(
    records: list[tuple[np.ndarray, int]],
    bits: int,
    pieces: int,
    admission: tuple[int, float, int],
    promotion: tuple[int, float],
) -> None:
    policies = {"counters": 3, "admission": admission, "promotion": promotion, "score": (0.1, 1.0)}
    one, other = (Store(some, store_parts(SPEC), 1, **policies) for some in (0, bits))  # type: ignore[arg-type]
    for step, (some_keys, seed) in enumerate(records):
        keys = np.unique(some_keys)
        gradients = np.random.default_rng(seed).standard_normal((len(keys), SPEC.dim)).astype(np.float32)
        one.push(keys, gradients, salt=seed, now=float(step))
        order = np.random.default_rng(seed).permutation(len(keys))
        for some in np.array_split(order, pieces):
            other.push(keys[some], gradients[some], salt=seed, now=float(step))
        for store in (one, other):
            store.decay(0.75)
            store.evict(SCORE, 0.06)
            store.evict(AGE, 2.0, float(step))
    assert rows_of(one) == rows_of(other)
    assert counts_of(one) == counts_of(other)


@settings(deadline=None, max_examples=25)
@given(pushes=st.lists(KEYS, max_size=8), bits=st.integers(0, 4), count=st.integers(2, 9))
def test_a_filter_never_underestimates(pushes: list[np.ndarray], bits: int, count: int) -> None:
    filtered = Store(bits, store_parts(SPEC), admission=(BLOOM, count, 64))
    exact = Store(bits, store_parts(SPEC), admission=(COUNT, count, 0))
    for keys in pushes:
        for store in (filtered, exact):
            store.push(keys, np.zeros((len(keys), SPEC.dim), np.float32))
            store.decay(0.8, np.asarray([len(keys) % (1 << bits)], np.uint32))
        assert set(rows_of(exact)) <= set(rows_of(filtered))
        filters = filters_of(filtered)
        for key in set(counts_of(exact)) - set(rows_of(filtered)):
            filter = filters[partition_of(key, bits)]
            assert min(filter[place] for place in filter_places(key, 64)) >= counts_of(exact)[key]
