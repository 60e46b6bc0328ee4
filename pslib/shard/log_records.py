"""Log records of a shard: the part of a request that it is about to apply, and nothing else.

Beside messages there are notes (`pslib.wire.journal.Note`), by their name under ``note``:

``own``      units that are owned, empty, from now on
``seen``     lease epoch and floor of the stream of a load, or of a push that changed no row
``done``     all streams below ``below`` are over
``forget``   images up to map ``version`` are not needed any more
``declined`` a unit of another server was not taken, under this map ``version``
``left``     keys of rows of a table that were evicted by the server's memory limit
``bare``     the server has lost its predecessor's state, and has restored nothing yet
``back``     the remaining state is restored
``step``     names and units of the pushes in a sync step, beside a push with their sums
``counters`` of a shard, with all other state of no single unit: see `pslib.shard.replay.state_of`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.wire.selection import partition_set
from pslib.shard.key_slices import Shares, counts_of
from pslib.shard.state import ShardState
from pslib.table.partition_map import units_of_mask
from pslib.wire.journal import Note
from pslib.wire.messages import Erase, Push
from pslib.wire.quantization import gradients_of


def applied_push(shard: ShardState, message: Push, shares: Shares, fresh: int) -> Push:
    """Return the push with only the keys of ``shares`` and the dense blocks of ``fresh``."""
    named = {name: share for name, share in shares.items() if share.keys.size}
    rows = {name: gradients_of(message, name).take(share.places) for name, share in named.items()}
    blocks, dense = _blocks(shard, message, fresh)
    return replace(
        message,
        keys={name: share.keys for name, share in named.items()},
        gradients={name: packed.values for name, packed in rows.items()},
        gradient_scales={name: packed.scales for name, packed in rows.items() if packed.scales.size},
        shows=counts_of(message.shows, named),
        clicks=counts_of(message.clicks, named),
        blocks=blocks,
        dense=dense,
        sync={},
    )


def _blocks(shard: ShardState, message: Push, fresh: int) -> tuple[NDArray[np.uint32], NDArray[Any]]:
    """Return the blocks among the fresh units, and their gradients as received."""
    chosen = dict(block_pieces(shard, message, fresh))
    if len(chosen) == message.blocks.size:
        return message.blocks, message.dense
    return np.asarray([*chosen], np.uint32), np.concatenate([message.dense[:0], *chosen.values()])


def block_pieces(shard: ShardState, message: Push, units: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the dense blocks of a push among these units, with their gradients as received."""
    start = 0
    for block in message.blocks.tolist() if shard.dense else ():
        assert shard.dense is not None
        first, last = shard.dense.bounds(block)
        if units >> (shard.partitions + block) & 1:
            yield block, message.dense[start : start + last - first]
        start += last - first


def applied_erase(message: Erase, shares: Shares) -> Erase:
    """Return the erase with only the keys of ``shares``."""
    return replace(message, keys={name: share.keys for name, share in shares.items()})


def seen(message: Any) -> Note:
    """Return the note of a request's stream, whether the request is applied or not."""
    return {
        "note": "seen",
        "stream": message.stream,
        "epoch": message.epoch,
        "below": message.all_acked_below,
    }


def note_of_own(mask: int) -> Note:
    """Return the note of ownership of the units of a mask."""
    return {"note": "own", "units": units_of_mask(mask).tolist()}


def note_of_step(parts: Sequence[tuple[Push, int, int]], ready: int, maintain: bool) -> Note:
    """Return the note of a sync step of units ``ready``: each push's name, units, units with gradients."""
    return {
        "note": "step",
        "maintain": maintain,
        "ready": units_of_mask(ready).tolist(),
        "pushes": [
            {
                **seen(message),
                "number": message.number,
                "home": message.home,
                "units": units_of_mask(units).tolist(),
                "touched": touched.bit_count(),
                "counts": bool(touched >> message.home & 1),
            }
            for message, units, touched in parts
        ],
    }


def units_in(shard: ShardState, message: Push | Erase) -> int:
    """Return the units by which a recorded request was counted: those it touches, all fresh then."""
    units = 0
    for block in message.blocks.tolist() if isinstance(message, Push) else ():
        units |= 1 << shard.partitions + block
    for keys in message.keys.values():
        units |= partition_set(keys, shard.partition_bits)
    return units
