"""The last pushes that each server has acknowledged to this process: what its successor must know."""

from __future__ import annotations

from collections import deque

import numpy as np

from cython_ext.common.hashing import partition_of
from pslib.client.calls import Call, Part, PullCall
from pslib.wire.messages import Witness

__all__ = ["KEPT", "Acknowledged"]

KEPT = 32
"""Of each server. A log that has lost anything has lost its end, and that holds the last of some client."""

MOMENTS = 16
"""A cut that is given up is a moment too, and so many in a row say that none will ever be made."""


class Acknowledged:
    """Remembers names of pushes, and one key of each, which stands for its unit.

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
        name = call.name
        for table, places in part.places.items():
            keys = call.keys[table]
            size = keys.size if places is None else places.size
            if size:  # another key for each push: were it always the first, all could be of one shard's log
                at = name.number % size
                key = int(keys[at if places is None else places[at]])
                self._last.setdefault(part.server, deque(maxlen=KEPT)).append((name.stream, name.number, key))
                self._counts[part.server] = self._counts.get(part.server, 0) + 1
                return

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
        streams, numbers, keys = (np.array(one, np.uint64) for one in zip(*last, strict=True))
        return Witness(streams, numbers, partition_of(keys, self._bits))
