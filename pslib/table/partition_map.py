"""Partition map: the owner of each partition and dense block, as an immutable, versioned value.

Partitions and dense blocks are numbered together as **units**: partition ``p`` is unit ``p``, dense block
``b`` is unit ``partitions + b``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError

__all__ = ["PartitionMap", "mask_of_units", "units_of_mask"]


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


def mask_of_units(units: NDArray[np.integer]) -> int:
    """Set of units as one Python integer: bit ``u`` is unit ``u``; ``|`` is the union, at memory speed."""
    if units.size == 0:
        return 0
    bits = np.zeros(int(units.max()) + 1, np.uint8)
    bits[units] = 1
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def units_of_mask(mask: int) -> NDArray[np.int64]:
    """Units of a set made by `mask_of_units`, ascending."""
    data = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))
