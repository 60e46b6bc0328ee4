"""Record of the last pushes that each server acknowledged, to measure what a successor has lost."""

from __future__ import annotations

from collections import deque

import numpy as np

from cython_ext.common.hashing import partition_of
from pslib.client.calls import Call, Part, PullCall
from pslib.wire.messages import Witness

KEPT = 32
"""Pushes kept per server. A damaged log loses its end, which holds the last pushes of some client."""

MOMENTS = 16
"""Pause moments kept. An abandoned cut counts too; so many in a row mean that no cut will succeed."""


class Acknowledged:
    """Names of acknowledged pushes, with one key of each to stand for its unit.

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
        """Pushes acknowledged by each server at each of the last moments."""

    def note(self, call: Call, part: Part) -> None:
        """Record that a server has acknowledged all of a part."""
        if isinstance(call, PullCall):
            return
        name = call.name
        for table, places in part.places.items():
            keys = call.keys[table]
            size = keys.size if places is None else places.size
            if size:  # vary the key: the first keys of all pushes could be in one shard's log
                at = name.number % size
                key = int(keys[at if places is None else places[at]])
                self._last.setdefault(part.server, deque(maxlen=KEPT)).append((name.stream, name.number, key))
                self._counts[part.server] = self._counts.get(part.server, 0) + 1
                return

    def pause(self, moment: str) -> None:
        """Record the counts at a named moment, common to all trainers, when all pushes are acknowledged."""
        self._at.pop(moment, None)
        self._at[moment] = dict(self._counts)
        if len(self._at) > MOMENTS:
            del self._at[next(iter(self._at))]

    def lost(self, server: int, moment: str) -> tuple[int, int]:
        """Return (lost, total) pushes of a server restored to a moment; a second call returns none lost."""
        asked = self._counts.get(server, 0)
        lost = asked - self._at.get(moment, {}).get(server, 0)
        for counts in (self._counts, *self._at.values()):
            counts.pop(server, None)
        self._last.pop(server, None)
        return lost, asked

    def question(self, server: int) -> Witness | None:
        """Return the request to send to a server's successor; None when the server acknowledged nothing."""
        last = self._last.get(server)
        if not last:
            return None
        streams, numbers, keys = (np.array(one, np.uint64) for one in zip(*last, strict=True))
        return Witness(streams, numbers, partition_of(keys, self._bits))
