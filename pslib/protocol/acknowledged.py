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

MOMENTS = 16
"""A cut that is given up is a moment too, and so many in a row say that none will ever be made."""


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
        self._counts: dict[int, int] = {}
        self._at: dict[str, dict[int, int]] = {}
        """How many pushes each server had acknowledged at the last moments."""

    def note(self, call: Call, part: Part) -> None:
        """A server has acknowledged all of a part."""
        if isinstance(call, PullCall):
            return
        unit = self._unit_of(call, part, call.name.number)
        if unit is not None:
            last = self._last.setdefault(part.server, deque(maxlen=KEPT))
            last.append((call.name.stream, call.name.number, unit))
            self._counts[part.server] = self._counts.get(part.server, 0) + 1

    def _unit_of(self, call: Call, part: Part, number: int) -> int | None:
        """One unit that the part touches, another one for each push; None for an empty one.

        A server's shards have a log each: were it always the first unit, all could be of one shard.
        """
        for table, places in part.places.items():
            keys = call.keys[table]
            size = keys.size if places is None else places.size
            if size:
                at = number % size
                one = keys[at : at + 1] if places is None else keys[places[at : at + 1]]
                return int(partition_of(one, self._bits)[0])
        return None

    def pause(self, moment: str) -> None:
        """Now, at a moment that all trainers know by this name, all that was pushed is acknowledged."""
        self._at.pop(moment, None)
        self._at[moment] = dict(self._counts)
        if len(self._at) > MOMENTS:
            del self._at[next(iter(self._at))]

    def lost(self, server: int, moment: str) -> tuple[int, int]:
        """A server is as it was at a moment: how many pushes it has lost, of how many; asked again, none."""
        asked = self._counts.get(server, 0)
        lost = asked - self._at.get(moment, {}).get(server, 0)
        for counts in (self._counts, *self._at.values()):
            counts.pop(server, None)
        self._last.pop(server, None)
        return lost, asked

    def question(self, server: int) -> Witness | None:
        """What to ask the successor of a server; None when it has acknowledged nothing."""
        last = self._last.get(server)
        if not last:
            return None
        streams, numbers, units = zip(*last, strict=True)
        return Witness(np.array(streams, np.uint64), np.array(numbers, np.uint64), np.array(units, np.uint32))
