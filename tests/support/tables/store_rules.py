"""Keys and rules shared by the random tests of a `Store` against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from cython_ext.table.store import Store
from pslib.table.tables import TableSpec
from tests.support.definitions.table import unmix64

# Mixed values that differ in few bits share partition, home line and counters of a small filter: the worst
# that an index can meet. Homes are the first lines, one in the middle, and the last, from where entries go on
# round the end.
HOMES = (0, 1 << 34, 3 << 37, 7 << 37)
CROWDED = [unmix64(home | (high << 60) | low) for home in HOMES for high in (0, 15) for low in range(30)]
UNIVERSE = np.asarray([0, 1, 2**64 - 1, 2**63, *CROWDED], np.uint64)

KEYS = st.lists(st.sampled_from(UNIVERSE.tolist()), max_size=150).map(
    lambda keys: np.asarray(keys, np.uint64)
)
SEEDS = st.integers(0, 2**32 - 1)


class StoreRules(RuleBasedStateMachine):
    """A store and its definition; a subclass makes both and compares them."""

    spec: TableSpec
    store: Store
    model: Any

    @rule(keys=KEYS)
    def erase(self, keys: np.ndarray) -> None:
        assert self.store.erase(keys) == self.model.erase(keys)

    @rule(keys=KEYS, seed=SEEDS)
    def assign(self, keys: np.ndarray, seed: int) -> None:
        rng = np.random.default_rng(seed)
        weights = rng.standard_normal((len(keys), self.spec.dim)).astype(np.float32)
        state = rng.random((len(keys), self.store.state_floats)).astype(np.float32)
        self.store.assign(keys, weights, state)
        self.model.assign(keys, weights, state)

    @rule(place=st.integers(0, 15))
    def drop(self, place: int) -> None:
        partition = place % (1 << self.store.partition_bits)
        assert self.store.drop_partition(partition) == self.model.drop_partition(partition)
