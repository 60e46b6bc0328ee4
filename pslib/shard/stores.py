"""Stores of a shard: rows of each table, and blocks of the dense parameters with their state."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cython_ext.table.steps import apply_dense_blocks
from cython_ext.table.store import Store
from pslib.errors import ConfigurationError
from pslib.table.descriptions import dense_differences, table_differences
from pslib.table.optimizers import HYPERPARAMETERS_MAX, MODIFIERS, SGD, optimizer_from_dict
from pslib.table.partition_map import BlockBounds
from pslib.table.policies import STORAGES
from pslib.table.tables import DenseSpec, TableSpec
from pslib.wire.messages import Setup

FloatRows = NDArray[np.float32]
PartNumbers = tuple[int, int, FloatRows, FloatRows, FloatRows, int, FloatRows, int, FloatRows]


def store_parts(spec: TableSpec) -> list[PartNumbers]:
    """Return the parts of a table as `cython_ext.table.store.Store` takes them."""
    return [
        (
            part.dim,
            part.optimizer.kind,
            part.optimizer.hyperparameters(),
            part.optimizer.modifiers(),
            part.optimizer.corrections(),
            part.initializer.kind,
            part.initializer.numbers(),
            spec.part_seed(part),
            part.optimizer.initial_state(part.dim),
        )
        for part in spec.parts
    ]


def make_store(spec: TableSpec, partition_bits: int) -> Store:
    """Create an empty store for one table."""
    score = spec.score
    return Store(
        partition_bits,
        store_parts(spec),
        spec.narrow_parts,
        storage=STORAGES.index(spec.storage),
        counters=spec.needs_seen | spec.needs_counts << 1,
        admission=(0, 0.0, 0) if spec.admission is None else spec.admission.numbers(),
        promotion=(0, 0.0) if spec.compact is None else spec.compact.promotion(),
        score=(0.0, 0.0) if score is None else (score.nonclick, score.click),
    )


_NO_STATE = np.empty(0, np.float32)
_ADDITION = (
    SGD.kind,
    np.array([-1, *[0] * (HYPERPARAMETERS_MAX - 1)], np.float32),
    np.zeros(len(MODIFIERS), np.float32),
    np.empty((0, 2), np.float32),
)
"""Numbers of an SGD whose step adds the gradient, exactly."""


class DenseBlocks:
    """Blocks of the dense parameters, each a flat float32 array with its state; see `BlockBounds`."""

    def __init__(self, spec: DenseSpec, blocks: int) -> None:
        self.spec = spec
        self.bounds = BlockBounds(spec.length, blocks)
        self.weights: dict[int, FloatRows] = {}
        self.state: dict[int, FloatRows] = {}
        self.versions: dict[int, int] = {}
        """Version of each block, incremented by each step. It begins at a number that follows from the first
        weights, so that blocks of two lives of a server differ.
        """
        self.steps_refused = 0
        """Steps of blocks that have refused an element, as its weight or state would not be finite."""
        self._hyperparameters = spec.optimizer.hyperparameters()
        self._modifiers = spec.optimizer.modifiers()
        self._corrections = spec.optimizer.corrections()

    def put(
        self, block: int, weights: FloatRows, state: FloatRows | None = None, version: int | None = None
    ) -> None:
        """Own a block with these weights; a fresh state when none is given, and a version of its own."""
        self.weights[block] = np.array(weights, np.float32)
        first = (zlib.crc32(self.weights[block].tobytes()) | 1) << 32
        self.versions[block] = self.versions.get(block, first - 1) + 1 if version is None else version
        fresh = self.spec.optimizer.initial_state(weights.size)
        self.state[block] = fresh if state is None else np.array(state, np.float32)

    def renumber(self, life: int) -> None:
        """Give all blocks versions that no earlier life of this server can have given them."""
        for block, version in self.versions.items():
            self.versions[block] = version ^ (life & 0x3FFFFFFF) << 33

    def drop(self, block: int) -> None:
        """Stop owning a block."""
        for of in (self.weights, self.state, self.versions):
            of.pop(block, None)  # one without values may move too

    def check_values(self, blocks: NDArray[np.uint32], owned: int) -> None:
        """Check that the ``owned`` ones (a set, by bits) of these blocks can be read and stepped.

        Raises
        ------
        ConfigurationError
            When no client that has set one up has given initial values.
        """
        if len(self.weights) >= owned.bit_count():
            return
        for block in blocks.tolist():
            if owned >> block & 1 and block not in self.weights:
                raise ConfigurationError(
                    f"dense block {block} has no values; expected a setup with first values before it is used"
                )

    def apply(self, block: int, gradient: FloatRows, rate: float = 1.0, delta: bool = False) -> int:
        """Take one optimizer step of a block; see `apply_all`."""
        return self.apply_all([block], gradient, rate, delta)

    def apply_all(
        self, blocks: Sequence[int], gradient: FloatRows, rate: float = 1.0, delta: bool = False
    ) -> int:
        """Take one optimizer step of each block, learning rates times ``rate``; with ``delta``, add instead.

        ``gradient`` has those of all blocks, one after the other. Returns the number of blocks of which an
        element was refused, as its weight or state would not be finite.
        """
        weights = [self.weights[block] for block in blocks]
        for block in blocks:
            self.versions[block] += 1
        if delta:
            states = [_NO_STATE] * len(weights)
            refused = apply_dense_blocks(*_ADDITION, weights, states, gradient)
        else:
            states = [self.state[block] for block in blocks]
            numbers = (self.spec.optimizer.kind, self._hyperparameters, self._modifiers, self._corrections)
            refused = apply_dense_blocks(*numbers, weights, states, gradient, rate)
        self.steps_refused += refused
        return refused


def specs_of(message: Setup, known: Mapping[str, TableSpec]) -> list[TableSpec]:
    """Return the tables that a message describes.

    Raises
    ------
    ConfigurationError
        When one of these names is known with another description.
    """
    specs = [TableSpec.from_dict(plain) for plain in message.tables["tables"]]
    for spec in specs:
        if (mine := known.get(spec.name, spec)) != spec:
            raise ConfigurationError(
                f"table {spec.name} exists with another description: {table_differences(mine, spec)}; use "
                "the same one, or another name; another model needs a cluster of its own"
            )
    return specs


def dense_of(message: Setup, known: DenseBlocks | None, blocks: int) -> DenseBlocks | None:
    """Return the dense parameters that a message describes: the known ones, or new ones without values.

    Raises
    ------
    ConfigurationError
        When they are known with another description, or the number of values is wrong.
    """
    if not message.dense_length:
        return known
    spec = DenseSpec(message.dense_length, optimizer_from_dict(dict(message.dense_optimizer)))
    values = 0 if message.without_values else spec.length
    if message.dense.size != values:
        raise ConfigurationError(f"dense parameters: expected {values} values, got {message.dense.size}")
    if known is not None and known.spec != spec:
        raise ConfigurationError(
            f"dense parameters exist with another description: {dense_differences(known.spec, spec)}; use "
            "the same one; another model needs a cluster of its own"
        )
    return known or DenseBlocks(spec, blocks)
