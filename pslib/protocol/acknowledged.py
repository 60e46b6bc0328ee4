"""The last pushes that each server has acknowledged to this process: what its successor must know."""

from __future__ import annotations

from collections import deque

import numpy as np

from cython_ext.hashing import partition_of
from pslib.protocol.calls import Call, Part, PullCall
from pslib.protocol.messages import Witness

__all__ = ["KEPT", "Acknowledged"]

KEPT = 32
"""Of each server. A log that has lost anything has lost its end, and that holds the last of some client."""


class Acknowledged:
    """Remembers names of pushes, and one unit of each.

    Parameters
    ----------
    partition_bits : int
        2^bits partitions; dense blocks are the units behind them.
    """

    def __init__(self, partition_bits: int) -> None:
        self._bits = partition_bits
        self._last: dict[int, deque[tuple[int, int, int]]] = {}

    def note(self, call: Call, part: Part) -> None:
        """A server has acknowledged all of a part."""
        if isinstance(call, PullCall):
            return
        unit = self._unit_of(call, part)
        if unit is not None:
            last = self._last.setdefault(part.server, deque(maxlen=KEPT))
            last.append((call.name.stream, call.name.number, unit))

    def _unit_of(self, call: Call, part: Part) -> int | None:
        """One unit that the part touches; None for an empty one."""
        for table, places in part.places.items():
            keys = call.keys[table]
            first = keys[:1] if places is None else keys[places[:1]]
            if first.size:
                return int(partition_of(first, self._bits)[0])
        return None

    def question(self, server: int) -> Witness | None:
        """What to ask the successor of a server; None when it has acknowledged nothing."""
        last = self._last.get(server)
        if not last:
            return None
        streams, numbers, units = zip(*last, strict=True)
        return Witness(np.array(streams, np.uint64), np.array(numbers, np.uint64), np.array(units, np.uint32))
