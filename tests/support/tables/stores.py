"""Helpers of the tests of a `Store`."""

from __future__ import annotations

import numpy as np

from cython_ext.table.store import Store

__all__ = ["absent_of", "pulled", "random_keys"]


def random_keys(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, np.uint64)


def pulled(store: Store, keys: np.ndarray) -> np.ndarray:
    """Return the rows of these keys; NaN where the pull wrote nothing."""
    out = np.full((len(keys), store.dim), np.nan, np.float32)
    store.pull(keys, out)
    return out


def absent_of(store: Store, keys: np.ndarray) -> np.ndarray:
    """Return 1 for each key without a row, else 0."""
    return np.asarray([store.missing(keys[place : place + 1]) for place in range(len(keys))])
