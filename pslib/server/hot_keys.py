"""Share of pulled keys that fall on the hottest 1 %, estimated from a sample."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

EVERY = 64
"""Pulls of which one is counted: 0.1 ms of 20,000 keys, in the time in which a server answers 64 of them."""
KEYS_MAX = 8192
HOTTEST = 0.01
KEYS_MIN = 200
"""Counted keys below which there is no estimate: two keys are their hottest 1 %."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


class HotKeys:
    """Counts of pulls of a sample of all keys.

    A key is in the sample or not by its hash, so the sampled keys are counted exactly; when there are
    more than `KEYS_MAX`, every second one is dropped. Keys of all tables are counted together.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._bits = 0

    def add(self, arrays: Iterable[NDArray[np.uint64]]) -> None:
        """Count the keys of a pull."""
        for keys in arrays:
            sampled = self._sampled(keys)
            if sampled.size > KEYS_MAX:  # one key that repeats would drop all others; np.unique is slow
                sampled = np.sort(sampled)
                sampled = sampled[np.append(True, sampled[1:] != sampled[:-1])]
            while sampled.size > KEYS_MAX:  # before the loop below, which would take seconds for millions
                self._thin()
                sampled = self._sampled(sampled)
            for key in sampled.tolist():
                self._counts[key] = self._counts.get(key, 0) + 1
        while len(self._counts) > KEYS_MAX:
            self._thin()

    def _thin(self) -> None:
        """Drop every second key from the sample."""
        self._bits += 1
        kept = self._sampled(np.fromiter(self._counts, np.uint64, len(self._counts)))
        self._counts = {key: self._counts[key] for key in kept.tolist()}

    def _sampled(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return keys[(keys * _ODD) >> np.uint64(64 - self._bits) == 0] if self._bits else keys

    def counts(self) -> list[int]:
        """Return the counts of the sampled keys, in no order."""
        return list(self._counts.values())


def hot_share(counts: list[int]) -> float | None:
    """Return the share of all counts that the hottest 1 % of the keys have; None with too few keys."""
    if len(counts) < KEYS_MIN:
        return None
    ordered = np.sort(np.array(counts))[::-1]
    return float(ordered[: max(1, round(HOTTEST * ordered.size))].sum() / ordered.sum())
