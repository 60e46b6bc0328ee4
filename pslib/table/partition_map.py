"""Owners of partitions and of blocks of dense parameters, and the bounds of these blocks.

Partitions and dense blocks are numbered together as **units**: partition ``p`` is unit ``p``, dense block
``b`` is unit ``partitions + b``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError


@dataclass(frozen=True, slots=True, eq=False)
class PartitionMap:
    """Owners of all units at one version.

    Attributes
    ----------
    version : int
        Incremented by every change; 0: no map yet.
    partition_bits : int
        2^bits partitions.
    owners : (partitions + dense_blocks,) uint16
        Server number of each unit.
    addresses : tuple of str
        Address of each server number; empty for one that has left and owns no unit.
    """

    version: int
    partition_bits: int
    owners: NDArray[np.uint16]
    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.owners.size <= self.partitions:
            raise ConfigurationError(
                f"partition map: expected more than {self.partitions} units, got {self.owners.size}"
            )
        if int(self.owners.max()) >= len(self.addresses):
            raise ConfigurationError(
                f"partition map: owner {int(self.owners.max())} has no address ({len(self.addresses)} known)"
            )

    @staticmethod
    def even(partition_bits: int, dense_blocks: int, addresses: tuple[str, ...]) -> PartitionMap:
        """First map: contiguous ranges of partitions and round-robin dense blocks, both even."""
        servers = len(addresses)
        partitions = 1 << partition_bits
        owners = np.concatenate(
            [np.arange(partitions, dtype=np.int64) * servers // partitions, np.arange(dense_blocks) % servers]
        )
        return PartitionMap(1, partition_bits, owners.astype(np.uint16), addresses)

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return 1 << self.partition_bits

    @property
    def dense_blocks(self) -> int:
        """Number of dense blocks."""
        return self.owners.size - self.partitions

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.addresses)

    def units_of(self, server: int) -> NDArray[np.int64]:
        """Units owned by ``server``, ascending."""
        return np.flatnonzero(self.owners == server)

    def moved(self, unit: int, server: int) -> PartitionMap:
        """Next version, with ``unit`` owned by ``server``."""
        owners = self.owners.copy()
        owners[unit] = server
        return PartitionMap(self.version + 1, self.partition_bits, owners, self.addresses)

    def with_address(self, server: int, address: str) -> PartitionMap:
        """Next version, with another address of ``server``, which may be new."""
        known = (*self.addresses, *[""] * (server + 1 - self.servers))
        addresses = (*known[:server], address, *known[server + 1 :])
        return PartitionMap(self.version + 1, self.partition_bits, self.owners, addresses)


UNITS_MAX = 1 << 22
"""More than partitions and dense blocks of any cluster; a set of units takes a bit for each."""


def mask_of_units(units: NDArray[np.integer]) -> int:
    """Set of units as one Python integer: bit ``u`` is unit ``u``; ``|`` is the union, at memory speed."""
    if units.size == 0:
        return 0
    most = int(units.max())
    if int(units.min()) < 0 or most >= UNITS_MAX:
        raise ValueError(f"expected units in 0..{UNITS_MAX - 1}, got {int(units.min())}..{most}")
    bits = np.zeros(most + 1, np.uint8)
    bits[units] = 1
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def units_of_mask(mask: int) -> NDArray[np.int64]:
    """Units of a set made by `mask_of_units`, ascending."""
    data = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))


@dataclass(frozen=True, slots=True)
class BlockBounds:
    """Block ``b`` covers ``[b * size, min((b + 1) * size, length))`` with ``size = ceil(length / blocks)``.

    Attributes
    ----------
    length : int
        Dense parameters.
    blocks : int
        Number of blocks, at least 1; the last ones may be empty.

    Examples
    --------
    >>> bounds = BlockBounds(10, 4)
    >>> bounds(3), bounds.floats(np.array([0, 3])), bounds.runs(np.array([0, 1, 3]))
    ((9, 10), 4, [(0, 6), (9, 10)])
    """

    length: int
    blocks: int

    def __call__(self, block: int) -> tuple[int, int]:
        """Start and end of a block, end exclusive."""
        size = self.size
        return min(block * size, self.length), min((block + 1) * size, self.length)

    @property
    def size(self) -> int:
        """Elements of all blocks but the last ones."""
        return -(-self.length // self.blocks)

    @property
    def used(self) -> int:
        """Number of non-empty blocks."""
        return -(-self.length // self.size) if self.length else 0

    def ends(self, blocks: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """(n,) end of each of these blocks when concatenated."""
        starts = blocks.astype(np.int64) * self.size
        sizes = np.minimum(starts + self.size, self.length) - np.minimum(starts, self.length)
        return np.cumsum(sizes)

    def floats(self, blocks: NDArray[np.integer[Any]]) -> int:
        """Total elements of these blocks."""
        return int(self.ends(blocks)[-1]) if blocks.size else 0

    def runs(self, blocks: NDArray[np.integer[Any]]) -> list[tuple[int, int]]:
        """Start and end, end exclusive, of each run of consecutive blocks."""
        if not blocks.size:
            return []
        breaks = np.flatnonzero(np.diff(blocks.astype(np.int64)) != 1)
        first = blocks[np.concatenate(([0], breaks + 1))].tolist()
        last = blocks[np.concatenate((breaks, [blocks.size - 1]))].tolist()
        return [(self(one)[0], self(other)[1]) for one, other in zip(first, last, strict=True)]
