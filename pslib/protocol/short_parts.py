"""Calls of a few rows: begun and answered by compiled code, unfolded into parts when anything else happens.

Nearly all calls of a few keys a server ask for float32 rows of one table, or push such gradients, and each
part is answered once, by its owner. Then nobody needs the parts, messages and requests that
`pslib.protocol.client_session` makes of all others; `cython_ext.short_calls` keeps a few numbers of each.
What is no such call, or does not go so smoothly (a second try, a refusal, a map, a peer that has moved), is
done by the definition, which finds what it would have found had it begun the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.selection import group_by_owner
from cython_ext.short_frames import ShortCall
from pslib.protocol.calls import (
    NO_FLOATS,
    NO_UNITS,
    PLAINLY,
    Call,
    Part,
    PullCall,
    PushCall,
    message_of,
)
from pslib.protocol.codec import SMALL_BYTES_MAX, Buffer
from pslib.protocol.requests import RequestTable
from pslib.table.partition_map import PartitionMap

__all__ = ["SHORT_KEYS_MAX", "ShortParts"]

SHORT_KEYS_MAX = SMALL_BYTES_MAX // 8
"""Keys of a part that is short, at most: larger arrays are frames of their own."""


class ShortParts:
    """Short calls of one session.

    Parameters
    ----------
    requests : RequestTable
        Sends them.
    parts : dict of int to Part
        Of the session, by ticket: where parts go that are unfolded.
    acked_below : callable
        Of a stream.
    pushed : callable
        Hears of parts of pushes that are applied: call, server, one of its keys, pushes_before.
    over : callable
        Hears the number of a call of which every part is answered.
    """

    def __init__(
        self,
        requests: RequestTable,
        parts: dict[int, Part],
        acked_below: Callable[[int], int],
        pushed: Callable[[list[tuple[ShortCall, int, int, int]]], None],
        over: Callable[[int], None],
    ) -> None:
        self._requests, self._short, self._parts = requests, requests.short, parts
        self._acked_below, self.pushed, self.over = acked_below, pushed, over

    def begin(
        self,
        now_s: float,
        number: int,
        call: Call,
        partition_map: PartitionMap,
        owners: NDArray[np.uint16],
        patience_s: float,
    ) -> bool:
        """Send all of a call, if that is so easy; False: nothing has changed."""
        servers, addresses = partition_map.servers, partition_map.addresses
        if not self._requests.takes_short(addresses) or (rows := _rows_of(call, servers)) is None:
            return False
        ((table, keys),) = call.keys.items()
        order = None
        if servers == 1:
            starts = np.array([0, keys.size], np.int64)
        else:
            bits, partitions = partition_map.partition_bits, partition_map.partitions
            order, starts = group_by_owner(keys, bits, owners[:partitions], servers)
        named = None
        if isinstance(call, PushCall):
            name = call.name
            named = name.stream, name.number, name.epoch, self._acked_below(name.stream), call.home
        moment = call.moment.step, call.moment.time_s
        try:
            short = ShortCall(self, number, table, keys, rows, order, starts, named, moment, call)
        except ValueError:  # a table with a long name, a number that is none: the codec says so, or can do it
            return False
        return self._requests.start_short(now_s, short, addresses, patience_s)

    def receive(self, now_s: float, came: list[tuple[Any, list[Buffer]]]) -> list[tuple[Any, list[Buffer]]]:
        """Take what answers parts of short calls; all other messages."""
        if self._short is None:
            return came
        rest = self._short.receive(now_s, came)
        self.settle()
        return rest

    def settle(self) -> None:
        """Calls of which each part is answered are over."""
        self.note_applied()
        if self._short is not None:
            for call in self._short.over:
                call.owner.over(call.number)  # that of another session, were there two
            self._short.over.clear()

    def note_applied(self) -> None:
        """Say which parts of pushes are applied, before anybody looks or hears that a call is over."""
        if self._short is not None and self._short.applied:
            applied = list(self._short.applied)
            self._short.applied.clear()
            for owner in {call.owner for call, *_ in applied}:
                owner.pushed([one for one in applied if one[0].owner is owner])

    def unfold(self, short: ShortCall) -> None:
        """Make parts and requests of what is still open of a call."""
        assert self._short is not None
        call: Call = short.memory
        floor = short.named[3] if short.named is not None else 0  # as it was sent
        for request_id, peer, server, places, cost, pause_s in self._short.unfold(short):
            part = Part(short.number, server, {short.table: places}, NO_UNITS, 0)
            message = message_of(call, part, floor, NO_FLOATS)
            self._parts[self._requests.adopt(short, request_id, peer, message, cost, pause_s)] = part
            call.open_parts += 1


def _rows_of(call: Call, servers: int) -> NDArray[np.float32] | None:
    """What a call reads into, or pushes; None: it is not one table's plain rows, or they are too many."""
    if len(call.keys) != 1:
        return None
    ((table, keys),) = call.keys.items()
    if not 0 < keys.size <= SHORT_KEYS_MAX * servers or not keys.flags.c_contiguous:
        return None
    if isinstance(call, PullCall):
        return call.rows[table] if call.rows_as == "float32" and not call.dense.size else None
    if not isinstance(call, PushCall) or not call.gradients:
        return None
    if call.manner is not PLAINLY or call.counts or call.dense.size:
        return None
    packed = call.gradients[table]
    values = packed.values
    return values if packed.is_plain and values.flags.c_contiguous else None
