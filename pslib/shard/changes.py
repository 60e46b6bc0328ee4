"""Reads of the rows that have changed: a reader follows a table of a shard, from a position on.

A reader names the position up to which it has all changes of this shard, and gets the rows of keys that have
changed since, as they are now, with the next position. Where that can't tell all of a partition's changes, it
is **stale**, and the reader asks for it whole: at first, after another life of the server, when the log has
gone on too far, and for a partition that came from another server. A push may come between the slices of an
answer: its keys are in the log behind the position that the answer names, and the next one has them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cython_ext.data.distinct import distinct
from pslib.shard.change_log import keys_in
from pslib.shard.key_slices import cuts
from pslib.shard.serving import Steps, pull_dense
from pslib.shard.state import ShardState
from pslib.table.partition_map import units_of_mask
from pslib.wire.dense_delta import DenseDelta
from pslib.wire.messages import Changes
from pslib.wire.quantization import QuantizedRows

CHANGES_MAX = 1 << 16
"""Changes in one answer of a shard, beside partitions that are read whole: 5 ms of its time."""


@dataclass(frozen=True, slots=True)
class ShardChanges:
    """Outcome of `Changes` on one shard; its blocks are already in the shared output."""

    origin: int
    position: int
    end: int
    owned: NDArray[np.uint32]
    stale: NDArray[np.uint32]
    stale_rows: NDArray[np.uint32]
    keys: NDArray[np.uint64]
    rows: QuantizedRows


def changes_steps(shard: ShardState, message: Changes, dense: DenseDelta) -> Steps[ShardChanges]:
    """Read the changes of this shard since its position in ``message.since``, and its partitions in units."""
    log, store = shard.changes.of(message.table), shard.stores[message.table]
    owned = units_of_mask(shard.owned).astype(np.uint32)
    partitions = owned[owned < shard.partitions]
    wanted = np.intersect1d(message.units, partitions)
    origin, position = _place_of(shard, message)
    if log.holds(origin, position):
        changed = log.read(position, CHANGES_MAX)
        first, position = position, position + changed.size
        stale = np.intersect1d(np.array(log.stale_in(first, position), np.uint32), partitions)
    else:
        changed, stale, position = log.read(log.end, 0), partitions, log.end
    stale = np.setdiff1d(stale, wanted)
    whole = [keys_in(store, unit) for unit in wanted.tolist()]
    keys = distinct(np.concatenate([changed[shard.own_keys(changed)], *whole]))[0]
    rows = QuantizedRows.empty(keys.size, store.dim, message.rows_as)
    for number, (start, stop) in enumerate(cuts(keys.size, shard.slice_rows)):
        if number:
            yield
        found = np.empty((stop - start, store.dim), np.float32)
        store.pull(keys[start:stop], found)
        rows.cut(start, stop).put(found)
    yield from pull_dense(shard, message.blocks, dense, {})
    sizes = np.array([store.partition_rows(unit) for unit in stale.tolist()], np.uint32)
    return ShardChanges(log.origin, position, log.end, owned, stale.astype(np.uint32), sizes, keys, rows)


def _place_of(shard: ShardState, message: Changes) -> tuple[int, int]:
    """Return the origin and the position that a request names for this shard; no log has the origin 0."""
    place = 2 * shard.index
    if message.since.size != 2 * shard.shards:
        return 0, 0
    return int(message.since[place]), int(message.since[place + 1])
