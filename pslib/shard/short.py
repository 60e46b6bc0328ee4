"""Short pulls and pushes in their common form, served with as little Python as they need.

Nearly every request of a few rows names only what is here, and has no dense blocks, scales, counts or manner
of its own; then nothing has to be split, cut, refused or logged. Without this file a message costs a cluster
of 16 servers 1.2 times the CPU (`benchmarks/many.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cython_ext.selection import first_of_others, partition_set
from pslib.protocol.marks import record_salt
from pslib.protocol.messages import Message, Pull, Pulled, Push, Pushed
from pslib.shard.serving import fresh_units, record
from pslib.shard.state import MINE

if TYPE_CHECKING:
    from pslib.shard.shard import Shard

__all__ = ["TIME_S_MAX", "short_answer"]

TIME_S_MAX = 1e12
"""31,000 years; tables keep times in float32, which ends at 3e38."""
FLOATS_MAX = 1 << 16
"""Of a table in one answer: any message has room for it."""
NO_FLOATS, NO_UNITS, NO_OWNERS = np.empty(0, np.float32), np.empty(0, np.uint32), np.empty(0, np.uint16)
APPLIED_BEFORE = Pushed(NO_UNITS, NO_OWNERS)


def short_answer(shard: Shard, message: Message, rows_max: int) -> Pulled | Pushed | None:
    """The answer to a pull or push that is short and plain; None: it is not, and no row has changed.

    Errors as for `pslib.shard.serving.push_steps`. For a shard that has no siblings.
    """
    if type(message) is Pull:
        plain = message.rows_as == message.dense_as == "float32" and not message.known
        return _pulled(shard, message) if plain and _is_short(shard, message, rows_max) else None
    if type(message) is Push and _is_plain(shard, message) and _is_short(shard, message, rows_max):
        return _pushed(shard, message)
    return None


def _is_short(shard: Shard, message: Pull | Push, rows_max: int) -> bool:
    """Whether all its keys are this shard's own, of tables that there are, and few."""
    if message.blocks.size or not 0 <= message.time_s <= TIME_S_MAX:
        return False
    bits, kinds, stores, rows = shard.partition_bits, shard.kind_of_partition, shard.stores, 0
    for name, keys in message.keys.items():
        rows += keys.size
        if name not in stores or rows > rows_max or keys.size * stores[name].dim > FLOATS_MAX:
            return False
        if first_of_others(keys, bits, kinds, MINE) != keys.size:
            return False
    return True


def _is_plain(shard: Shard, message: Push) -> bool:
    """Whether gradients are those of the keys, as they are, and nothing else is said."""
    said = message.sync or message.shows or message.clicks or message.gradient_scales or message.dense.size
    if said or message.rate != 1.0 or message.delta or shard.journal is not None:
        return False
    if message.home >= shard.partitions or message.gradients.keys() != message.keys.keys():
        return False
    for name, given in message.gradients.items():
        if name not in shard.stores or given.dtype != np.float32:
            return False
        if given.shape != (message.keys[name].size, shard.stores[name].dim):
            return False
    return shard.room.is_sure(message.keys, shard.tables)  # letting rows go takes a second in a large table


def _pulled(shard: Shard, message: Pull) -> Pulled:
    found: dict[str, NDArray[np.float32]] = {}
    for name, keys in message.keys.items():
        store = shard.stores[name]
        found[name] = rows = np.empty((keys.size, store.dim), np.float32)
        store.pull(keys, rows, shard.tables[name].now(message.step, message.time_s))
        shard.counters.rows_pulled += keys.size
    return Pulled(found, NO_FLOATS, NO_UNITS, NO_OWNERS, pushes_before=shard.pushes_before)


def _pushed(shard: Shard, message: Push) -> Pushed | None:
    units = 0
    for keys in message.keys.values():
        units |= partition_set(keys, shard.partition_bits)
    fresh = fresh_units(shard, message, units)
    if not fresh:
        return APPLIED_BEFORE
    if fresh != units:
        return None
    shard.room.make(message.keys, shard.stores, shard.tables)
    salt = record_salt(message.stream, message.number)
    for name, keys in message.keys.items():
        now = shard.tables[name].now(message.step, message.time_s)
        shard.stores[name].push(keys, message.gradients[name], salt=salt, now=now)
        shard.counters.rows_pushed += keys.size
    pushes_before = shard.pushes_before
    record(shard, message, fresh)
    return Pushed(NO_UNITS, NO_OWNERS, pushes_before)
