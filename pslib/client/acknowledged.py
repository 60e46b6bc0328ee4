"""Record of the last pushes that each server acknowledged, to measure what a successor has lost."""

from __future__ import annotations

from collections import deque

import numpy as np

from cython_ext.common.hashing import partition_of
from pslib.client.calls import Call, Part, PushCall
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
        self._last: dict[int, deque[tuple[int, int, int, int]]] = {}
        """Count, stream, number and a key of the last pushes to each server."""
        self._counts: dict[int, int] = {}
        self._told: dict[int, int] = {}
        """Counts below which losses are told."""
        self._at: dict[str, dict[int, int]] = {}
        """Counts of each server at each of the last moments."""

    def note(self, call: Call, part: Part) -> None:
        """Record that a server has acknowledged all of a part.

        A part of dense gradients alone is counted, and no successor is asked about it.
        """
        if not isinstance(call, PushCall):
            return
        name, count = call.name, self._counts.get(part.server, 0) + 1
        for table, places in part.places.items():
            keys = call.keys[table]
            size = keys.size if places is None else places.size
            if size:  # vary the key: the first keys of all pushes could be in one shard's log
                at = name.number % size
                key = int(keys[at if places is None else places[at]])
                last = self._last.setdefault(part.server, deque(maxlen=KEPT))
                last.append((count, name.stream, name.number, key))
                self._counts[part.server] = count
                return
        if part.blocks.size:
            self._counts[part.server] = count

    def count(self, server: int) -> int:
        """Return the number of pushes that a server, with its predecessors, has acknowledged."""
        return self._counts.get(server, 0)

    def pause(self, moment: str) -> None:
        """Record the counts at a named moment, common to all trainers, when all pushes are acknowledged."""
        self._at.pop(moment, None)
        self._at[moment] = dict(self._counts)
        if len(self._at) > MOMENTS:
            del self._at[next(iter(self._at))]

    def lost(self, server: int, moment: str, count: int) -> tuple[int, int]:
        """Return (lost, total) of a server's first ``count`` pushes, when its successor began at a moment.

        Pushes acknowledged behind these are the successor's own. An acknowledgement is told once.
        """
        told = self._told.get(server, 0)
        begun = max(told, self._at.get(moment, {}).get(server, 0))
        self._told[server] = max(told, count)
        last = self._last.get(server)
        while last and last[0][0] <= count:
            last.popleft()
        return max(0, count - begun), max(0, count - told)

    def question(self, server: int) -> Witness | None:
        """Return the request to send to a server's successor; None when the server acknowledged nothing."""
        last = self._last.get(server)
        if not last:
            return None
        _counts, streams, numbers, keys = (np.array(one, np.uint64) for one in zip(*last, strict=True))
        return Witness(streams, numbers, partition_of(keys, self._bits))
