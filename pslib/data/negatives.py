"""Negative sampler: draws items by their frequency, deterministically for each batch.

The probability of an item is ``q = count^alpha / sum of all count^alpha`` over the training data. ``alpha`` 0
draws uniformly, 1 in proportion to the counts. Draws of one batch are independent (with repetition), and a
function of (seed, epoch, lease, batch number): a trainer that takes a lease over draws the same items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslib.data.columns import lists_of
from pslib.data.dataset import ParquetData
from pslib.data.features import field_keys
from pslib.data.item_catalog import SORT_AT_ONCE, record_batches
from pslib.errors import ConfigurationError
from pslib.schema import RaggedField, SparseField
from pslib.table.tables import text_hash

__all__ = ["NegativeSampler", "Sampling", "item_counts"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling options of a model.

    Attributes
    ----------
    field : str
        Sparse field whose keys are items, or ragged field whose elements are items.
    count : int
        Items drawn for a batch; 0: none, only `NegativeSampler.log_q` is used.
    alpha : float
        Exponent of the item count.
    each : bool
        Whether ``count`` are drawn for each example of a batch, one example after the other.
    told : float or None
        Exponent of the count in `NegativeSampler.log_q`; None: ``alpha``.
    """

    field: str
    count: int
    alpha: float
    each: bool = False
    told: float | None = None


def item_counts(data: ParquetData, field: str) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Count the items of a sparse or ragged field; return keys, ascending, and counts.

    Raises
    ------
    ConfigurationError
        If the schema has no such field, or all lists are empty.
    """
    fields: tuple[SparseField | RaggedField, ...] = (*data.schema.sparse, *data.schema.ragged)
    known = {one.name: one for one in fields}
    if field not in known:
        raise ConfigurationError(
            f"{field!r}: expected a sparse or ragged field of the schema, got {sorted(known)}"
        )
    found = np.empty(0, np.uint64), np.empty(0, np.int64)
    waiting: list[NDArray[np.uint64]] = []
    for some in _key_pieces(data, known[field]):
        waiting.append(some)
        # At least as many as are known already; otherwise re-sorting the known keys dominates.
        if sum(map(len, waiting)) >= max(SORT_AT_ONCE, found[0].size):
            found, waiting = _counted(*found, waiting), []
    keys, counts = _counted(*found, waiting)
    if not keys.size:
        raise ConfigurationError(f"{field!r}: expected lists with items, got empty ones only")
    return keys, counts


def _counted(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], more: list[NDArray[np.uint64]]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Merge more keys into keys and counts."""
    fresh, times = np.unique(np.concatenate([np.empty(0, np.uint64), *more]), return_counts=True)
    joined, inverse = np.unique(np.concatenate([keys, fresh]), return_inverse=True)
    weights = np.concatenate([counts, times])
    return joined, np.bincount(inverse, weights, joined.size).astype(np.int64)


def _key_pieces(data: ParquetData, field: SparseField | RaggedField) -> Iterator[NDArray[np.uint64]]:
    for batch in record_batches(data):
        if isinstance(field, SparseField):
            yield field_keys(batch, field)
        else:
            yield lists_of(batch.column(field.name), field.salt)[0]


class NegativeSampler:
    """Negative sampler over the items of a data set.

    Parameters
    ----------
    data : ParquetData
        Read once, to count: 5 million elements of 414,000 items in 0.3 s (2026-11-21).
    sampling : Sampling
    seed : int
    """

    def __init__(self, data: ParquetData, sampling: Sampling, seed: int) -> None:
        self.sampling, self._seed = sampling, seed
        self.keys, counts = item_counts(data, sampling.field)
        self._below = np.cumsum(_shares(counts, sampling.alpha))
        told = sampling.alpha if sampling.told is None else sampling.told
        self._log_q = np.log(_shares(counts, told)).astype(np.float32)

    def draw(self, epoch: int, lease: int, number: int, examples: int = 1) -> NDArray[np.uint64]:
        """Keys drawn for one batch, (count,), or (examples * count,) if drawn per example; may repeat."""
        key = text_hash("negatives", *map(str, (self._seed, epoch, lease, number)))
        count = self.sampling.count * (examples if self.sampling.each else 1)
        words = np.random.Philox(key=key).random_raw(count)
        drawn = np.searchsorted(self._below, (words >> np.uint64(11)) * 2.0**-53, side="right")
        return self.keys[np.minimum(drawn, self.keys.size - 1)]

    def log_q(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Log probability of each key (`Sampling.told`); 0 for keys that are not items of the data."""
        places = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return np.where(self.keys[places] == keys, self._log_q[places], np.float32(0))


def _shares(counts: NDArray[np.int64], alpha: float) -> NDArray[np.float64]:
    weights = counts.astype(np.float64) ** alpha
    return weights / weights.sum()
