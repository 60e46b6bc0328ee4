"""Logs of changed keys, for readers that follow a shard: which rows have changed since a position.

A log begins when a reader first asks for its table, and ends when more keys than it holds have changed since
the last question; without one a push pays for one look-up. It has no rows: a reader gets those of the moment
at which it asks. Nothing of it is on disk: its origin, a random number, tells that another log has begun.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from cython_ext.table.store import Store

KEYS = 1 << 21
"""Changes that a log holds: 16 MiB a shard thread, 20 s of 100,000 changed rows/s."""
ANY_KEY = np.zeros(1, np.uint64)
"""Key that is noted where a position must pass, and no row has changed."""

Keys = NDArray[np.uint64]


def keys_in(store: Store, partition: int) -> Keys:
    """Return the keys of all rows of a partition, wide and narrow."""
    classes = (False, True) if store.narrow_parts else (False,)
    return np.concatenate([store.export_partition(partition, narrow)[0] for narrow in classes])


class ChangeLog:
    """Last changed keys of one table on one shard, in order, some more than once.

    Parameters
    ----------
    size : int
        Keys that it holds.

    Attributes
    ----------
    origin : int
        Name of this log, never 0.
    end : int
        Position after the last change: the number of changes since the log began.
    """

    def __init__(self, size: int = KEYS) -> None:
        self._ring = np.empty(size, np.uint64)
        self._stale: dict[int, int] = {}
        """Position at which a partition has changed as a whole."""
        self.origin = secrets.randbits(62) | 1
        self.end = self._asked = 0

    @property
    def first(self) -> int:
        """Position of the oldest change that it holds."""
        return max(0, self.end - self._ring.size)

    @property
    def is_idle(self) -> bool:
        """Return True if more keys have changed than it holds since a reader last asked."""
        return self.end - self._asked > self._ring.size

    def note(self, keys: Keys) -> None:
        """Add changed keys."""
        size = self._ring.size
        some = keys[-size:]
        at = (self.end + keys.size - some.size) % size
        fitting = min(some.size, size - at)
        self._ring[at : at + fitting] = some[:fitting]
        self._ring[: some.size - fitting] = some[fitting:]
        self.end += keys.size

    def mark_stale(self, unit: int) -> None:
        """Note that a partition has changed as a whole."""
        self._stale[unit] = self.end
        self.note(ANY_KEY)

    def holds(self, origin: int, position: int) -> bool:
        """Return True if a reader at this position can get all changes since."""
        return origin == self.origin and self.first <= position <= self.end

    def read(self, position: int, most: int) -> Keys:
        """Return at most ``most`` changed keys from a position that it holds on."""
        self._asked = self.end
        size = self._ring.size
        count = min(most, self.end - position)
        at = position % size
        fitting = min(count, size - at)
        return np.concatenate([self._ring[at : at + fitting], self._ring[: count - fitting]])

    def stale_in(self, first: int, end: int) -> list[int]:
        """Return the partitions whose last change as a whole is from a position on, before an end."""
        return [unit for unit, at in self._stale.items() if first <= at < end]


class ChangeLogs:
    """Change logs of a shard, by table."""

    def __init__(self) -> None:
        self._logs: dict[str, ChangeLog] = {}

    def __contains__(self, table: str) -> bool:
        return table in self._logs

    def of(self, table: str) -> ChangeLog:
        """Return the log of a table, which begins now if there is none."""
        log = self._logs.get(table)
        if log is None:
            log = self._logs[table] = ChangeLog()
        return log

    def note(self, table: str, keys: Keys) -> None:
        """Add changed keys, where a reader follows the table."""
        log = self._logs.get(table)
        if log is None:
            return
        log.note(keys)
        if log.is_idle:
            del self._logs[table]

    def mark_stale(self, unit: int) -> None:
        """Note that a partition of every table has changed as a whole."""
        for log in self._logs.values():
            log.mark_stale(unit)

    @contextmanager
    def noting_lost_rows(self, table: str, store: Store, partitions: NDArray[np.uint32]) -> Iterator[None]:
        """Add the keys that lose their rows in the block, by rules that do not name them."""
        if table not in self._logs:
            yield
            return
        before = {unit: keys_in(store, unit) for unit in partitions.tolist()}
        yield
        lost = [
            np.setdiff1d(keys, keys_in(store, unit), assume_unique=True)
            for unit, keys in before.items()
            if store.partition_rows(unit) != keys.size
        ]
        if lost:
            self.note(table, np.concatenate(lost))

    def clear(self) -> None:
        """End all logs: other rows are loaded."""
        self._logs.clear()
