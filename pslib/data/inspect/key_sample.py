"""Key frequency sample: estimates the share of rare keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import mix64

__all__ = ["KeySample"]

KEYS_MAX = 8_192
"""Most keys kept, at least half after a cut: a share is known to 0.016 (two standard errors)."""


class KeySample:
    """Counts of keys sampled by their hash, so that a sampled key is counted from its first occurrence.

    Keys whose mixed number begins with ``level`` zero bits are kept; when there are too many, the level
    rises. So every key has the same chance, independent of its frequency (Gibbons 2001, distinct sampling).
    """

    def __init__(self) -> None:
        self._level = 0
        self._keys, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)

    def add(self, keys: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
        """Add counts, (n,), to distinct ``keys``, (n,)."""
        kept = self._chosen(keys)
        together = np.concatenate([self._keys, keys[kept]])
        self._keys, inverse = np.unique(together, return_inverse=True)
        weights = np.concatenate([self._counts, counts[kept]])
        self._counts = np.bincount(inverse, weights, self._keys.size).astype(np.int64)
        while self._keys.size > KEYS_MAX:
            self._level += 1
            kept = self._chosen(self._keys)
            self._keys, self._counts = self._keys[kept], self._counts[kept]

    def share_below(self, count: int) -> float:
        """Share of keys that occur fewer than ``count`` times; 0 without keys."""
        return float(np.mean(self._counts < count)) if self._keys.size else 0.0

    def _chosen(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if self._level == 0:
            return np.ones(keys.size, np.bool_)
        return mix64(np.ascontiguousarray(keys)) >> np.uint64(64 - self._level) == 0
