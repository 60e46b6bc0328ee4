"""Many rows, many operations of every kind: each row is what its key and the number of its pushes say.

All rows begin at 0 and a push adds the unit of the key times a sign of each column, numbers that every
storage type holds exactly up to 30 pushes: a byte a key, how often it was pushed, says all weights.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cython_ext.table.store import Store
from pslib.shard.stores import store_parts
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from tests.support.definitions.storage import INT8, STORAGE_NAMES, mix64_of
from tests.support.definitions.table import unmix64

DIM = 16
MOST_PUSHES = 30
BLOCK = 1 << 17
SPEC = TableSpec("t", (PartSpec("v", DIM, SGD(1.0), Constant(0.0)),))
LAST = unmix64(2**64 - 1)

Places = NDArray[np.int64]


class Counted:
    """A Store, and for each of its possible keys how often it was pushed; 0 is a key without a row."""

    def __init__(self, rows: int, storage: int, counters: int, seed: int, partition_bits: int) -> None:
        self.store = Store(partition_bits, store_parts(SPEC), storage=storage, counters=counters)
        self.storage, self.counters = storage, counters
        self.rng = np.random.default_rng(seed)
        self.pushes = np.zeros(rows, np.uint8)

    def keys(self, places: Places) -> NDArray[np.uint64]:
        """Key 0 at place 0 and key 2^64-1 at the last one; the others as random as keys are."""
        numbers = places.astype(np.uint64)
        numbers[places == len(self.pushes) - 1] = LAST
        return mix64_of(numbers)

    def one_push(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the steps of one push: 1, 2 or 4 with a sign; in int8 times 127, for exact scales."""
        units = np.exp2((keys % np.uint64(3)).astype(np.float32)) * np.float32(
            127 if self.storage == INT8 else 1
        )
        signs = (keys[:, None] >> np.arange(DIM, dtype=np.uint64) & np.uint64(1)).astype(np.float32) * 2 - 1
        return units[:, None] * signs

    def some(self, count: int) -> list[Places]:
        """Places without repeats in a block."""
        blocks = -(-count // BLOCK)
        size = min(count // blocks, len(self.pushes))
        return [np.unique(self.rng.integers(0, len(self.pushes), size)) for _ in range(blocks)]

    def push(self, places: Places) -> None:
        places = places[self.pushes[places] < MOST_PUSHES]
        keys = self.rng.permutation(self.keys(places))
        self.store.push(keys, -self.one_push(keys), salt=int(self.rng.integers(1 << 63)), now=1.0)
        self.pushes[places] += 1

    def erase(self, places: Places) -> None:
        """Also those that are absent."""
        assert self.store.erase(self.keys(places)) == np.count_nonzero(self.pushes[places])
        self.pushes[places] = 0

    def assign(self, places: Places) -> None:
        keys = self.keys(places)
        state = np.zeros((len(keys), self.store.state_floats), np.float32)
        self.store.assign(keys, self.one_push(keys) * 3, state)
        self.pushes[places] = 3

    def pull(self, places: Places) -> None:
        keys = self.keys(places)
        out = np.empty((len(keys), DIM), np.float32)
        assert self.store.pull(keys, out) == np.count_nonzero(self.pushes[places] == 0)
        assert np.array_equal(out, self.one_push(keys) * self.pushes[places][:, None].astype(np.float32))

    def move_a_partition(self) -> None:
        number = int(self.rng.integers(1 << self.store.partition_bits))
        content = self.store.export_partition(number)
        assert self.store.drop_partition(number) == len(content[0])
        self.store.import_partition(number, *content)

    def check(self) -> None:
        """Every row there is and no other."""
        for start in range(0, len(self.pushes), BLOCK):
            self.pull(np.arange(start, min(start + BLOCK, len(self.pushes))))
        assert self.store.rows == np.count_nonzero(self.pushes)
        self.store.check_consistency()


def grow(table: Counted) -> None:
    """Few keys at a time first, and a look at each doubling."""
    rows = len(table.pushes)
    for start in range(0, rows, BLOCK):
        block = np.arange(start, min(start + BLOCK, rows))
        for piece in np.array_split(block, 200 if start == 0 else 1):
            table.push(piece)
        number = start // BLOCK
        if number & (number + 1) == 0:
            table.pull(block)


def every_kind_of_operation(
    rows: int, operations: int, storage: int, counters: int, partition_bits: int
) -> None:
    table = Counted(rows, storage, counters, seed=storage, partition_bits=partition_bits)
    grow(table)
    for work in (table.push, table.pull, table.erase, table.erase, table.push, table.assign, table.push):
        for places in table.some(operations):
            work(places)
        for _ in range(4):
            table.move_a_partition()
    table.check()
    for places in np.array_split(table.rng.permutation(rows), -(-rows // BLOCK)):
        table.erase(places)
    assert table.store.rows == table.store.stats()["row_bytes"] == 0
    for places in table.some(operations):
        table.push(places)
    table.check()


@pytest.mark.parametrize("counters", [0, 3], ids=["bare", "counters"])
@pytest.mark.parametrize("storage", range(4), ids=STORAGE_NAMES)
def test_every_row_is_what_its_key_and_pushes_say(storage: int, counters: int) -> None:
    every_kind_of_operation(20_000, 10_000, storage, counters, partition_bits=4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("storage", range(4), ids=STORAGE_NAMES)
def test_every_one_of_50_million_rows_is_what_its_key_and_pushes_say(storage: int) -> None:
    every_kind_of_operation(50_000_000, 10_000_000, storage, 0, partition_bits=12)
