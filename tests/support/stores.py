"""What tests of a `Store` ask of one."""

from __future__ import annotations

import numpy as np

from cython_ext.table.store import Store

__all__ = ["absent_of", "pulled", "random_keys"]


def random_keys(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, np.uint64)


def pulled(store: Store, keys: np.ndarray) -> np.ndarray:
    """The rows of these keys; NaN is what a pull has left as it was."""
    out = np.full((len(keys), store.dim), np.nan, np.float32)
    store.pull(keys, out)
    return out


def absent_of(store: Store, keys: np.ndarray) -> np.ndarray:
    """For each key whether it has no row."""
    return np.asarray([store.missing(keys[place : place + 1]) for place in range(len(keys))])
