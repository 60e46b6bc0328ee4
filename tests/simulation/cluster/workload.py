"""Workload of a simulated cluster: tables, and scripts of named pushes and erases from a seed.

Every optimizer is SGD with learning rate 1 and every gradient is a small negative integer, so sums are exact
and rows tell how often each push has been applied.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.coordinator.leases import stream_of
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from pslib.wire.messages import Setup
from pslib.wire.quantization import QuantizedRows, pack_gradients
from tests.support.definitions.table import unmix64

DENSE_LENGTH, DENSE_BLOCKS = 7, 5
"""Blocks have the sizes 2, 2, 2, 1, 0."""
DENSE_WEIGHTS = np.arange(1, DENSE_LENGTH + 1, dtype=np.float32)
"""Amounts that a push with a dense gradient adds: another number in each place, so that a mix-up is seen."""
ITEM_WEIGHTS = (1.0, 3.0)
SHARED_KEYS = (0, (1 << 64) - 1, 77, 78)
"""Keys of table ``user`` that many pushes touch, the outermost of all keys among them."""

SGD_1 = SGD(learning_rate=1.0)
SETUP = Setup(
    tables={
        "tables": [
            TableSpec(name, (PartSpec("v", dim, SGD_1, Constant(0.0)),)).to_dict()
            for name, dim in (("item", 2), ("user", 1))
        ]
    },
    dense_length=DENSE_LENGTH,
    dense_optimizer=SGD_1.to_dict(),
    dense=np.zeros(DENSE_LENGTH, np.float32),
)
DIMS = {"item": 2, "user": 1}

Rows = dict[str, tuple[NDArray[np.uint64], NDArray[np.float32]]]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One named call; ``after`` is a number of the stream that must be acknowledged before it starts."""

    stream: int
    number: int
    rows: Rows
    dense: NDArray[np.float32] | None
    item_keys: tuple[int, ...]
    shared_keys: tuple[int, ...]
    erases: bool = False
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """All calls of one stream, in order of their numbers."""

    stream: int
    ops: tuple[Op, ...]


def lease_scripts(choice: random.Random, jobs: list[int], restless: list[int], bits: int) -> list[Script]:
    """A script for each lease of each job."""
    return [
        _script(choice, stream_of(job, index), restless, bits)
        for job, leases in enumerate(jobs)
        for index in range(leases)
    ]


def own_script(choice: random.Random, number: int, restless: list[int], bits: int) -> Script:
    """A script for the stream of a client's own."""
    return _script(choice, (1 << 63) + number, restless, bits)


def _script(choice: random.Random, stream: int, restless: list[int], bits: int) -> Script:
    ops: list[Op] = []
    while len(ops) < 4:
        keys = tuple(_key(choice, restless, bits) for _ in range(choice.randint(1, 4)))
        ops.append(_push(choice, stream, len(ops), keys))
        if choice.random() < 0.3:  # erase these rows, and perhaps push them once more
            first = len(ops)
            ops.append(_erase(stream, first, keys))
            if choice.random() < 0.5:
                ops.append(_push(choice, stream, first + 1, keys, after=first))
    if choice.random() < 0.1:
        ops.append(Op(stream, len(ops), {}, None, (), ()))  # an empty push is a push too
    return Script(stream, tuple(ops))


def _key(choice: random.Random, restless: list[int], bits: int) -> int:
    """A key that no other push has, in a partition that moves more often than not."""
    moving = [unit for unit in restless if unit < 1 << bits]
    partition = choice.choice(moving) if moving and choice.random() < 0.7 else choice.randrange(1 << bits)
    return unmix64(partition << (64 - bits) | choice.getrandbits(64 - bits))


def _push(
    choice: random.Random, stream: int, number: int, keys: tuple[int, ...], after: int | None = None
) -> Op:
    rows: Rows = {
        "item": (np.array(keys, np.uint64), -np.tile(np.array(ITEM_WEIGHTS, np.float32), (len(keys), 1)))
    }
    shared: tuple[int, ...] = ()
    if choice.random() < 0.6:
        shared = tuple(choice.sample(SHARED_KEYS, choice.randint(0, 2)))
        rows["user"] = (np.array(shared, np.uint64), -np.ones((len(shared), 1), np.float32))
    dense = -DENSE_WEIGHTS if choice.random() < 0.7 else None
    return Op(stream, number, rows, dense, keys, shared, after=after)


def _erase(stream: int, number: int, keys: tuple[int, ...]) -> Op:
    rows: Rows = {"item": (np.array(keys, np.uint64), np.empty((0, 2), np.float32))}
    return Op(stream, number, rows, None, keys, (), erases=True, after=number - 1)


def packed(op: Op, gradients_as: str) -> tuple[dict[str, tuple[Any, QuantizedRows]], Any]:
    """Gradients as a trainer sends them, of rows and dense: small whole numbers are exact in 16 bits."""
    rows = {
        table: (keys, pack_gradients(keys, gradients, gradients_as, salt=op.number))
        for table, (keys, gradients) in op.rows.items()
    }
    if op.dense is None or gradients_as == "float32":
        return rows, op.dense
    return rows, pack_gradients(np.empty(0, np.uint64), op.dense[None], "bfloat16", 0).values[0]
