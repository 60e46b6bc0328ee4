"""The plain definitions that every kernel is held against: NumPy, dicts, no cleverness.

First values (here) and optimizer steps (`tests.support.definitions.optimizers`) are written as their
formulas, float32 with one rounding an operation, so that a kernel must give the same bits. `DictTable` is
what a table
*is*: a dict from key to row. It has the methods of ``cython_ext.table.store.Store`` and does each of them in
the most obvious way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pslib.table.initializers import Constant, Initializer, Normal, Uniform
from pslib.table.tables import TableSpec
from tests.support.definitions import storage
from tests.support.definitions.optimizers import decay_factor, full_step
from tests.support.definitions.storage import GOLDEN, INT8, mix64_of, random_bits, rounded

Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]

MIX_MULTIPLIER = int(storage.MIX_MULTIPLIER)
MASK64 = (1 << 64) - 1


def mix64(key: int) -> int:
    """The mixing function on one Python integer."""
    key ^= key >> 32
    key = key * MIX_MULTIPLIER & MASK64
    key ^= key >> 32
    key = key * MIX_MULTIPLIER & MASK64
    return key ^ (key >> 32)


def unmix64(mixed: int) -> int:
    """The key whose mixed value this is: lets a test choose partition, line and tag of its keys."""
    back = pow(MIX_MULTIPLIER, -1, 1 << 64)
    mixed ^= mixed >> 32
    mixed = mixed * back & MASK64
    mixed ^= mixed >> 32
    mixed = mixed * back & MASK64
    return mixed ^ (mixed >> 32)


@lru_cache(maxsize=1 << 16)
def partition_of(key: int, partition_bits: int) -> int:
    """The top bits of the mixed key."""
    return mix64(key) >> (64 - partition_bits)


# --- first values


def column_words(keys: Keys, dim: int, part_seed: int, which: int) -> Keys:
    """h(which) of every key and column, (n, dim)."""
    base = mix64_of(keys ^ np.uint64(part_seed))
    steps = (np.arange(dim, dtype=np.uint64) * np.uint64(4) + np.uint64(which)) * GOLDEN
    return mix64_of(base[:, None] + steps[None, :])


def first_values(initializer: Initializer, keys: Keys, dim: int, part_seed: int) -> Floats:
    """First values of one part, (n, dim)."""
    if isinstance(initializer, Constant):
        return np.full((len(keys), dim), initializer.value, np.float32)
    if isinstance(initializer, Uniform):
        unit = (column_words(keys, dim, part_seed, 0) >> np.uint64(40)).astype(np.float32) * np.float32(
            2**-24
        )
        return (unit * np.float32(2) - np.float32(1)) * np.float32(initializer.bound)
    assert isinstance(initializer, Normal)
    total = np.zeros((len(keys), dim), np.int64)
    for which in range(3):
        words = column_words(keys, dim, part_seed, which)
        for field in range(4):
            total += ((words >> np.uint64(16 * field)) & np.uint64(0xFFFF)).astype(np.int64)
    return ((total - 393210).astype(np.float32) * np.float32(1 / 65536)) * np.float32(initializer.std)


# --- a table


@dataclass
class Row:
    """Weights and state of the first so many parts, one array a part; counters; scales of int8."""

    weights: list[Floats]
    state: list[Floats]
    counters: Floats
    scales: list[np.float32]

    def all_state(self) -> Floats:
        """The state as a Store gives it: counters, scales, and then the parts'."""
        return np.concatenate([self.counters, np.asarray(self.scales, np.float32), *self.state])


class DictTable:
    """A table as a dict; same methods and answers as a Store, except that exports come by ascending key."""

    def __init__(
        self,
        spec: TableSpec,
        partition_bits: int,
        narrow_parts: int = 0,
        *,
        storage: int = 0,
        counters: int = 0,
    ) -> None:
        self.spec = spec
        self.partition_bits = partition_bits
        self.narrow_parts = narrow_parts
        self.storage = storage
        self.counters = counters
        self.table: dict[int, Row] = {}

    @property
    def rows(self) -> int:
        return len(self.table)

    @property
    def counter_floats(self) -> int:
        return [0, 1, 2, 3][self.counters]

    def parts_of(self, narrow: bool) -> int:
        return self.narrow_parts if narrow else len(self.spec.parts)

    def dim_of(self, narrow: bool) -> int:
        return sum(part.dim for part in self.spec.parts[: self.parts_of(narrow)])

    def state_floats_of(self, narrow: bool) -> int:
        parts = self.parts_of(narrow)
        scales = parts if self.storage == INT8 else 0
        return self.counter_floats + scales + sum(part.state_floats for part in self.spec.parts[:parts])

    def first_parts(self, key: int, first: int, last: int) -> Row:
        """Parts of a row that begin: first values as they are."""
        some = self.spec.parts[first:last]
        keys = np.asarray([key], np.uint64)
        return Row(
            [first_values(part.initializer, keys, part.dim, self.spec.part_seed(part))[0] for part in some],
            [part.optimizer.initial_state(part.dim) for part in some],
            np.zeros(self.counter_floats, np.float32),
            [np.float32(0)] * (len(some) if self.storage == INT8 else 0),
        )

    def store_part(self, row: Row, place: int, bits: NDArray[np.int64] | None) -> None:
        """Round one part to the storage type: by random bits, or to the nearest values."""
        given = row.scales[place] if row.scales and bits is None else 0
        row.weights[place], scale = rounded(self.storage, row.weights[place], bits, given)
        if row.scales:
            row.scales[place] = scale

    def pull(self, keys: Keys, out: Floats, now: float = 0.0) -> int:
        for place, key in enumerate(keys.tolist()):
            have = self.decayed(self.table[key], now) if key in self.table else []
            first = self.first_parts(key, len(have), len(self.spec.parts)).weights
            out[place] = np.concatenate([*have, *first])
        return sum(key not in self.table for key in keys.tolist())

    def decayed(self, row: Row, now: float) -> list[Floats]:
        missed = max(np.float32(now) - row.counters[0], 0) if self.counters & 1 else 0
        return [
            weights * decay_factor(part.optimizer, missed)
            for part, weights in zip(self.spec.parts, row.weights, strict=False)
        ]

    def push(
        self,
        keys: Keys,
        gradients: Floats,
        narrow: bool = False,
        *,
        salt: int = 0,
        now: float = 0.0,
        shows: Floats | None = None,
        clicks: Floats | None = None,
    ) -> None:
        for place, key in enumerate(keys.tolist()):
            made = key not in self.table
            if made:
                self.table[key] = self.first_parts(key, 0, self.parts_of(narrow))
            row = self.table[key]
            shown = 1 if shows is None else shows[place]
            missed = 0 if made or not self.counters & 1 else max(np.float32(now) - row.counters[0], 0)
            self.count(row, made, now, shown, 0 if clicks is None else clicks[place])
            self.step_row(row, key, gradients[place], salt, shown, missed)

    def count(self, row: Row, made: bool, now: float, shows: float, clicks: float) -> None:
        if self.counters & 1 and (made or now > row.counters[0]):
            row.counters[0] = now
        if self.counters & 2:
            with np.errstate(over="ignore"):
                counts = row.counters[-2:] + np.asarray([shows, clicks], np.float32)
            row.counters[-2:] = np.minimum(counts, np.finfo(np.float32).max)

    def step_row(self, row: Row, key: int, gradient: Floats, salt: int, shows: float, missed: float) -> None:
        start = 0
        for place, part in enumerate(self.spec.parts[: len(row.weights)]):
            own = gradient[start : start + part.dim]
            full_step(part.optimizer, row.weights[place], row.state[place], own, shows, missed)
            start += part.dim
            keys = np.asarray([key], np.uint64)
            self.store_part(row, place, random_bits(keys, part.dim, self.spec.part_seed(part), salt)[0])

    def erase(self, keys: Keys) -> int:
        return sum(self.table.pop(key, None) is not None for key in keys.tolist())

    def put(self, keys: Keys, weights: Floats, state: Floats, narrow: bool) -> None:
        some = self.spec.parts[: self.parts_of(narrow)]
        weight_ends = np.cumsum([part.dim for part in some])[:-1]
        state_ends = np.cumsum([part.state_floats for part in some])[:-1]
        scales = len(some) if self.storage == INT8 else 0
        for key, row_weights, row_state in zip(keys.tolist(), weights.copy(), state.copy(), strict=True):
            counters, own_scales, own = np.split(
                row_state, [self.counter_floats, self.counter_floats + scales]
            )
            row = Row(
                np.split(row_weights, weight_ends), np.split(own, state_ends), counters, list(own_scales)
            )
            for place in range(len(some)):
                self.store_part(row, place, None)
            self.table[key] = row

    def assign(self, keys: Keys, weights: Floats, state: Floats) -> None:
        self.put(keys, weights, state, narrow=False)

    def promote(self, keys: Keys) -> int:
        narrow = [key for key in dict.fromkeys(keys.tolist()) if key in self.table and self.is_narrow(key)]
        for key in narrow:
            row, fresh = self.table[key], self.first_parts(key, self.narrow_parts, len(self.spec.parts))
            for place in range(len(fresh.weights)):
                self.store_part(fresh, place, None)
            row.weights += fresh.weights
            row.state += fresh.state
            row.scales += fresh.scales
        return len(narrow)

    def is_narrow(self, key: int) -> bool:
        return len(self.table[key].weights) < len(self.spec.parts)

    def partition_keys(self, partition: int) -> list[int]:
        return sorted(key for key in self.table if partition_of(key, self.partition_bits) == partition)

    def partition_rows(self, partition: int) -> int:
        return len(self.partition_keys(partition))

    def partitions(self) -> NDArray[np.uint32]:
        return np.asarray(sorted({partition_of(key, self.partition_bits) for key in self.table}), np.uint32)

    def drop_partition(self, partition: int) -> int:
        keys = self.partition_keys(partition)
        for key in keys:
            del self.table[key]
        return len(keys)

    def export_partition(self, partition: int, narrow: bool = False) -> tuple[Keys, Floats, Floats]:
        keys = [key for key in self.partition_keys(partition) if self.is_narrow(key) == narrow]
        weights = np.zeros((len(keys), self.dim_of(narrow)), np.float32)
        state = np.zeros((len(keys), self.state_floats_of(narrow)), np.float32)
        for place, key in enumerate(keys):
            weights[place] = np.concatenate(self.table[key].weights)
            state[place] = self.table[key].all_state()
        return np.asarray(keys, np.uint64), weights, state

    def import_partition(
        self, partition: int, keys: Keys, weights: Floats, state: Floats, narrow: bool = False
    ) -> None:
        assert all(partition_of(key, self.partition_bits) == partition for key in keys.tolist())
        self.put(keys, weights, state, narrow)
