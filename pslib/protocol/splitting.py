"""Which server is asked for what: a call, split by the owners of its keys, dense blocks and units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from cython_ext.selection import group_by_owner
from pslib.protocol.calls import NO_UNITS, Call, MaintainCall, Part, keys_of
from pslib.table.partition_map import PartitionMap

__all__ = ["first_unit", "parts_of"]

Units = NDArray[np.uint32]


def first_unit(call: Call, partition_map: PartitionMap) -> int:
    """The unit that number 0 among the blocks of a call stands for."""
    return 0 if isinstance(call, MaintainCall) else partition_map.partitions


def parts_of(
    call: Call,
    partition_map: PartitionMap,
    owners: NDArray[np.uint16],
    places: Mapping[str, NDArray[np.int32] | None],
    blocks: Units,
    units: Units,
) -> dict[int, Part]:
    """What each server is asked, by its number; call and bounces are for the caller to say.

    Parameters
    ----------
    call, partition_map
    owners : (units,) uint16
        Of all units, as far as is known now.
    places : mapping of table name to (n,) int32, or None for all of its keys
    blocks : (b,) uint32
    units : (u,) uint32
        Those that a push of a sync step speaks for.
    """
    bits, servers = partition_map.partition_bits, partition_map.servers
    parts: dict[int, Part] = {}

    def part_of(server: int) -> Part:
        part = parts.get(server)
        if part is None:
            part = parts[server] = Part(0, server, {}, NO_UNITS, 0, NO_UNITS)
        return part

    for name, some in places.items():
        keys = keys_of(call, name, some)
        if servers == 1 and keys.size:  # nothing to sort
            part_of(0).places[name] = some
            continue
        order, starts = group_by_owner(keys, bits, owners[: partition_map.partitions], servers)
        for server in (starts[1:] > starts[:-1]).nonzero()[0].tolist():
            chosen = order[starts[server] : starts[server + 1]]
            whole = chosen.size == keys.size and some is None
            part_of(server).places[name] = None if whole else (chosen if some is None else some[chosen])
    for server, mine in _by_owner(blocks, owners, first_unit(call, partition_map)):
        part_of(server).blocks = mine
    for server, mine in _by_owner(units, owners, 0):
        part_of(server).units = mine
    return parts


def _by_owner(units: Units, owners: NDArray[np.uint16], first: int) -> Iterator[tuple[int, Units]]:
    """Those of each server; they are counted from the unit ``first``."""
    if not units.size:
        return
    theirs = owners[first + units]
    for server in np.unique(theirs).tolist():
        yield server, units[theirs == server]
