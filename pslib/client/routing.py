"""Routing of calls: split a call by the owners of its keys, dense blocks and units, and store the replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from cython_ext.wire.selection import group_by_owner
from pslib.client.calls import NO_UNITS, Call, MaintainCall, Part, PullCall, keys_of
from pslib.table.partition_map import BlockBounds, PartitionMap
from pslib.table.wire_format import DENSE_TYPES, ROW_TYPES
from pslib.wire.dense_delta import VERSIONS
from pslib.wire.messages import Pulled
from pslib.wire.quantization import floats_of, rows_of


def pulled_fits(
    call: PullCall, part: Part, message: Pulled, dims: Mapping[str, int], bounds: BlockBounds
) -> bool:
    """Return True if a reply has the types and shapes of its request: bytes from outside index our arrays."""
    if message.rows.keys() != part.places.keys() or not message.row_scales.keys() <= part.places.keys():
        return False
    for name, some in part.places.items():
        size, rows = call.keys[name].size if some is None else some.size, rows_of(message, name)
        if rows.problem(size, dims[name]) or rows.values.dtype != ROW_TYPES[call.rows_as]:
            return False
    if not part.blocks.size:
        return not message.dense_versions and not message.dense.size
    sizes = {name: array.size for name, array in message.dense_versions.items()}
    if sizes != ({VERSIONS: part.blocks.size} if call.known else {}):
        return False
    floats = bounds.floats(part.blocks[_news(call, part, message)])
    return message.dense.size == floats and (not floats or message.dense.dtype == DENSE_TYPES[call.dense_as])


def _news(call: PullCall, part: Part, message: Pulled) -> NDArray[np.bool_]:
    """Return a mask of the part's blocks that arrived; refused ones are zeros without known versions."""
    if call.known is None:
        return np.ones(part.blocks.size, bool)
    versions = message.dense_versions[VERSIONS]
    return (versions != 0) & (versions != call.known.versions[part.blocks])


def store_pulled(call: PullCall, part: Part, message: Pulled, bounds: BlockBounds) -> None:
    """Write a checked reply into the outputs of its call."""
    call.has_seen(part.server, message.pushes_before)
    for name, some in part.places.items():
        if some is None:
            call.rows[name] = rows_of(message, name).floats()
        else:
            rows_of(message, name).write_to(call.rows[name], some)
    if not part.blocks.size:
        return
    dense, is_news = floats_of(message.dense), _news(call, part, message)
    start = 0
    for first, last in bounds.runs(part.blocks[is_news]):
        if last - first == call.dense.size and not message.refused_units.size:
            call.dense = dense  # the whole vector: not copied, and never written again
            break
        call.dense[first:last] = dense[start : start + last - first]
        start += last - first
    if call.known:
        kept = part.blocks[~is_news]
        for first, last in bounds.runs(kept[call.known.versions[kept] != 0]):  # others: refused, not known
            call.dense[first:last] = call.known.vector[first:last]
        call.versions[part.blocks] = message.dense_versions[VERSIONS]


Units = NDArray[np.uint32]


def first_unit(call: Call, partition_map: PartitionMap) -> int:
    """Return the unit of block number 0 of a call."""
    return 0 if isinstance(call, MaintainCall) else partition_map.partitions


def parts_of(
    call: Call,
    partition_map: PartitionMap,
    owners: NDArray[np.uint16],
    places: Mapping[str, NDArray[np.int32] | None],
    blocks: Units,
    units: Units,
) -> dict[int, Part]:
    """Split a call into the parts of each server, by server number; the caller fills in call and bounces.

    Parameters
    ----------
    call, partition_map
    owners : (units,) uint16
        Known owners of all units.
    places : mapping of table name to (n,) int32, or None for all of its keys
    blocks : (b,) uint32
    units : (u,) uint32
        Units that a push of a sync step covers.
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
        if servers == 1 and keys.size:  # one server: no sort
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
    """Yield the units of each server, numbered from the unit ``first``."""
    if not units.size:
        return
    theirs = owners[first + units]
    for server in np.unique(theirs).tolist():
        yield server, units[theirs == server]
