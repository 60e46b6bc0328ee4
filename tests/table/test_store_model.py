"""A Store is a dict of rows: any sequence of operations gives the answers and the bits of DictTable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import store_parts
from pslib.table.initializers import Constant, Normal, Uniform
from pslib.table.optimizers import SGD, Adagrad, Adam, RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.storage import STORAGE_NAMES
from tests.support.definitions.table import DictTable
from tests.support.tables.store_rules import KEYS, SEEDS, UNIVERSE, StoreRules


def spec_of(weight_decay: float) -> TableSpec:
    return TableSpec(
        "embedding",
        (
            PartSpec("w", 1, Adam(0.01, weight_decay=weight_decay), Normal(0.1)),
            PartSpec("b", 2, SGD(0.1, cowclip_ratio=0.5, cowclip_floor=0.2), Constant(0.5)),
            PartSpec("v", 5, RowwiseAdagrad(0.1), Uniform(0.1)),
            PartSpec("u", 3, Adagrad(0.1, 1e-6, 0.1, weight_decay=weight_decay, clip_norm=1.5), Uniform(0.2)),
        ),
        seed=11,
    )


SPEC, DECAYING = spec_of(0), spec_of(0.3)


def rows_by_key(table: Store | DictTable, partition: int, narrow: bool) -> dict[int, bytes]:
    keys, weights, state = table.export_partition(partition, narrow)
    assert len(set(keys.tolist())) == len(keys)
    return {
        key: some.tobytes() + more.tobytes()
        for key, some, more in zip(keys.tolist(), weights, state, strict=True)
    }


def assert_same_table(store: Store, model: DictTable) -> None:
    store.check_consistency()
    assert store.rows == model.rows
    assert store.partitions().tolist() == model.partitions().tolist()
    for partition in range(1 << store.partition_bits):
        assert store.partition_rows(partition) == model.partition_rows(partition)
        for narrow in (False, True):
            assert rows_by_key(store, partition, narrow) == rows_by_key(model, partition, narrow)


class StoreAgainstDict(StoreRules):
    storage = 0
    spec = SPEC

    @initialize(
        partition_bits=st.integers(0, 4),
        narrow_parts=st.integers(1, 3),
        counters=st.integers(0, 3),
        level=st.sampled_from(vector_levels()),
    )
    def begin(self, partition_bits: int, narrow_parts: int, counters: int, level: str) -> None:
        self.policies = {"storage": self.storage, "counters": counters}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PSLIB_VECTORS", level)
            self.spec = DECAYING if counters & 1 else SPEC
            self.store = Store(partition_bits, store_parts(self.spec), narrow_parts, **self.policies)
        self.model = DictTable(self.spec, partition_bits, narrow_parts, **self.policies)

    def numbers(self, seed: int, *shape: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    @rule(keys=KEYS, seed=SEEDS, narrow=st.booleans())
    def push(self, keys: np.ndarray, seed: int, narrow: bool) -> None:
        gradients = self.numbers(seed, len(keys), SPEC.dim)
        shows, clicks = np.abs(self.numbers(seed + 1, 2, len(keys))) + np.float32(0.5)
        record = {
            "salt": seed,
            "now": float(seed % 50 - 10),
            "shows": shows if seed % 3 else None,
            "clicks": clicks if seed % 5 else None,
        }
        self.store.push(keys, gradients, narrow, **record)
        self.model.push(keys, gradients, narrow, **record)

    @rule(seed=SEEDS, narrow=st.booleans())
    def push_all(self, seed: int, narrow: bool) -> None:
        self.push(np.random.default_rng(seed).permutation(UNIVERSE), seed, narrow)

    @rule(keys=KEYS, now=st.integers(-20, 60))
    def pull(self, keys: np.ndarray, now: int) -> None:
        have, want = (np.full((len(keys), SPEC.dim), np.nan, np.float32) for _ in range(2))
        assert self.store.pull(keys, have, now) == self.model.pull(keys, want, now)
        assert have.tobytes() == want.tobytes()

    @rule(seed=SEEDS, kept=st.integers(0, 12))
    def erase_nearly_all(self, seed: int, kept: int) -> None:
        self.erase(np.random.default_rng(seed).permutation(UNIVERSE)[kept:])

    @rule(narrow=st.booleans())
    def move_to_another_store(self, narrow: bool) -> None:
        moved = Store(
            self.store.partition_bits, store_parts(self.spec), self.store.narrow_parts, **self.policies
        )
        for partition in self.store.partitions().tolist():
            for some in (narrow, not narrow):
                moved.import_partition(partition, *self.store.export_partition(partition, some), narrow=some)
        self.store = moved

    @rule(place=st.integers(0, 15), narrow=st.booleans())
    def import_over_rows_of_the_other_class(self, place: int, narrow: bool) -> None:
        partition = place % (1 << self.store.partition_bits)
        keys, _, _ = self.model.export_partition(partition, not narrow)
        weights = self.numbers(place, len(keys), self.model.dim_of(narrow))
        state = np.abs(self.numbers(place, len(keys), self.model.state_floats_of(narrow)))
        self.store.import_partition(partition, keys, weights, state, narrow)
        self.model.import_partition(partition, keys, weights, state, narrow)

    @invariant()
    def tables_agree(self) -> None:
        if hasattr(self, "store"):
            assert_same_table(self.store, self.model)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("storage", range(4), ids=STORAGE_NAMES)
def test_any_sequence_of_operations_gives_what_a_dict_gives(storage: int) -> None:
    machine = type("StoreOfType", (StoreAgainstDict,), {"storage": storage})
    chosen = settings(max_examples=30 if storage else 60, stateful_step_count=16, deadline=None)
    run_state_machine_as_test(machine, settings=chosen)


def test_growth_keeps_every_row_at_every_size() -> None:
    keys = np.random.default_rng(2).integers(0, 1 << 64, 700, np.uint64)
    spec = TableSpec("t", (PartSpec("v", 2, SGD(1.0), Uniform(0.5)),))
    store, model = Store(0, store_parts(spec)), DictTable(spec, 0)
    for place in range(len(keys)):
        one = keys[place : place + 1]
        gradient = np.full((1, 2), place, np.float32)
        store.push(one, gradient)
        model.push(one, gradient)
        store.check_consistency()
        assert store.rows == place + 1
    assert_same_table(store, model)


def test_shrinking_keeps_every_row_at_every_size() -> None:
    keys = np.random.default_rng(2).integers(0, 1 << 64, 700, np.uint64)
    spec = TableSpec("t", (PartSpec("v", 2, SGD(1.0), Uniform(0.5)),))
    store, model = Store(0, store_parts(spec)), DictTable(spec, 0)
    gradients = np.arange(1400, dtype=np.float32).reshape(700, 2)
    store.push(keys, gradients)
    model.push(keys, gradients)
    for place in range(len(keys)):
        assert store.erase(keys[place : place + 1]) == model.erase(keys[place : place + 1]) == 1
        store.check_consistency()
        if place % 50 == 0 or place > 660:
            assert_same_table(store, model)
    assert store.stats()["row_bytes"] == store.stats()["index_bytes"] == 0


@settings(deadline=None, max_examples=40)
@given(keys=KEYS, order=st.randoms(use_true_random=False), bits=st.integers(0, 20), block=st.integers(1, 200))
def test_rows_do_not_depend_on_partitions_order_or_batches(
    keys: np.ndarray, order: object, bits: int, block: int
) -> None:
    keys = np.unique(keys)
    gradients = np.sin(np.outer(keys.astype(np.float64), np.arange(1, SPEC.dim + 1))).astype(np.float32)
    one, other = Store(0, store_parts(SPEC)), Store(bits, store_parts(SPEC))
    one.push(keys, gradients)
    places = list(range(len(keys)))
    order.shuffle(places)  # type: ignore[attr-defined]
    for start in range(0, len(keys), block):
        some = places[start : start + block]
        other.push(keys[some], gradients[some])
    assert everything(one) == everything(other)


def everything(store: Store) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for partition in store.partitions().tolist():
        found |= rows_by_key(store, partition, narrow=False)
    return found
