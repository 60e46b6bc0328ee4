"""Slices of a request's keys: all keys of a table, or some of them with their places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.wire.fields import Arrays

Keys = NDArray[np.uint64]
Places = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KeySlice:
    """Keys of one table in a request, and their places in it (None: all keys, in order)."""

    keys: Keys
    places: Places | None = None

    def cut(self, start: int, stop: int) -> KeySlice:
        """Return adjacent keys."""
        if start == 0 and stop == self.keys.size:
            return self
        places = None if self.places is None else self.places[start:stop]
        return KeySlice(self.keys[start:stop], places)

    def entries(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the entries of an array of the request, such as its counts, for these keys."""
        return array if self.places is None else array[self.places]

    def take(self, chosen: NDArray[np.integer[Any]]) -> KeySlice:
        """Return the chosen keys."""
        places = chosen.astype(np.int32) if self.places is None else self.places[chosen]
        return KeySlice(self.keys[chosen], places)


Shares = Mapping[str, KeySlice]


def counts_of(counts: Arrays, shares: Shares) -> dict[str, NDArray[Any]]:
    """Return the shows or clicks of the keys of each table that has some."""
    return {name: share.entries(counts[name]) for name, share in shares.items() if name in counts}


def whole(tables: Arrays) -> dict[str, KeySlice]:
    """Return all keys of a request."""
    return {name: KeySlice(keys) for name, keys in tables.items()}


def cuts(length: int, most: int) -> Iterable[tuple[int, int]]:
    """Yield ranges of at most ``most``; one empty range for length 0."""
    if length <= most:
        return ((0, length),)
    return ((start, min(start + most, length)) for start in range(0, length, most))


def placed(share: KeySlice, start: int, stop: int) -> KeySlice:
    """Return a cut of a share whose places are those in the request."""
    if share.places is not None or stop - start == share.keys.size:
        return share.cut(start, stop)
    return KeySlice(share.keys[start:stop], np.arange(start, stop, dtype=np.int32))


def joined(parts: list[KeySlice], share: KeySlice) -> KeySlice:
    """Concatenate cuts of a share; return the share itself where none is missing."""
    if len(parts) == 1 and parts[0] is share:
        return share
    if sum(part.keys.size for part in parts) == share.keys.size:
        return share
    places = [part.places for part in parts if part.places is not None]
    return KeySlice(np.concatenate([part.keys for part in parts]), np.concatenate(places))
