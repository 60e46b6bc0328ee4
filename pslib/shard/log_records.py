"""What a shard says to its journal: the part of a request that it is about to apply, and nothing else.

Beside messages there are notes (`pslib.wire.journal.Note`), by their name under ``note``:

``own``      units that are owned, empty, from now on
``seen``     what a load, or a push that changed no row, said about its stream: its lease's epoch, floor
``done``     all streams below ``below`` are over
``forget``   images up to map ``version`` are not needed any more
``declined`` a unit of another server was not taken, under this map ``version``
``left``     rows of a table that the server's memory limit let go: their keys
``bare``     it has lost what its predecessor knew, and has nothing of it yet
``back``     now it has what is left
``step``     a push with the sums of a sync step stands beside it; whose pushes these are, of which units
``counters`` of a shard, with all else that is not of one unit: see `pslib.shard.replay.state_of`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cython_ext.wire.selection import partition_set
from pslib.shard.state import ShardState
from pslib.table.partition_map import units_of_mask
from pslib.wire.journal import Note
from pslib.wire.messages import Erase, Push
from pslib.wire.quantization import gradients_of

if TYPE_CHECKING:
    from pslib.shard.key_slices import KeySlice

__all__ = ["applied_erase", "applied_push", "note_of_own", "note_of_step", "seen", "units_in"]


def applied_push(shard: ShardState, message: Push, shares: Mapping[str, KeySlice], fresh: int) -> Push:
    """The push with nothing but the keys of ``shares`` and the dense blocks of ``fresh``."""
    named = {name: share for name, share in shares.items() if share.keys.size}
    rows = {name: gradients_of(message, name).take(share.places) for name, share in named.items()}
    blocks, dense = _blocks(shard, message, fresh)
    return replace(
        message,
        keys={name: share.keys for name, share in named.items()},
        gradients={name: packed.values for name, packed in rows.items()},
        gradient_scales={name: packed.scales for name, packed in rows.items() if packed.scales.size},
        shows=_taken(message.shows, named),
        clicks=_taken(message.clicks, named),
        blocks=blocks,
        dense=dense,
        sync={},
    )


def _taken(counts: Mapping[str, Any], shares: Mapping[str, KeySlice]) -> dict[str, Any]:
    return {
        name: counts[name] if share.places is None else counts[name][share.places]
        for name, share in shares.items()
        if name in counts
    }


def _blocks(
    shard: ShardState, message: Push, fresh: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Blocks among the fresh units, and their gradients as they came."""
    chosen, pieces, start = [], [message.dense[:0]], 0
    for block in message.blocks.tolist() if shard.dense else ():
        assert shard.dense is not None
        first, last = shard.dense.bounds(block)
        if fresh >> (shard.partitions + block) & 1:
            chosen.append(block)
            pieces.append(message.dense[start : start + last - first])
        start += last - first
    if len(chosen) == message.blocks.size:
        return message.blocks, message.dense
    return np.asarray(chosen, np.uint32), np.concatenate(pieces)


def applied_erase(message: Erase, shares: Mapping[str, KeySlice]) -> Erase:
    """The erase with nothing but the keys of ``shares``."""
    return replace(message, keys={name: share.keys for name, share in shares.items()})


def seen(message: Any) -> Note:
    """What a request says about its stream, whether it is applied or not."""
    return {
        "note": "seen",
        "stream": message.stream,
        "epoch": message.epoch,
        "below": message.all_acked_below,
    }


def note_of_own(mask: int) -> Note:
    """The units of a mask."""
    return {"note": "own", "units": units_of_mask(mask).tolist()}


def note_of_step(parts: Sequence[tuple[Push, int, int]], ready: int, maintain: bool) -> Note:
    """A sync step of the units ``ready``: of each push its name, its units, and those with gradients."""
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
    """How a recorded request was counted: the units that it touches, all of them fresh then."""
    units = 0
    for block in message.blocks.tolist() if isinstance(message, Push) else ():
        units |= 1 << shard.partitions + block
    for keys in message.keys.values():
        units |= partition_set(keys, shard.partition_bits)
    return units
