"""One batch of examples, keyed: what readers give and models eat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pslib.ragged import Ragged

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """``B`` examples with their keys already made distinct.

    Attributes
    ----------
    labels : (B,) float32
        0 or 1, of the schema's first label.
    dense : (B, N) float32
        The dense fields in the schema's order, nulls filled.
    keys : (U,) uint64
        Distinct keys of all sparse and ragged fields, in order of first appearance (sparse fields example by
        example, then ragged fields one after the other).
    sparse : (B, F) int32
        For each example and sparse field, the place of its key in ``keys``.
    ragged : mapping of field name to Ragged of int32
        For each ragged field, the places of its keys in ``keys``.
    negatives : (K,) int32
        Places of items that were drawn for the whole batch; empty where the model wants none.
    log_q : (U,) float32
        Of each key, the logarithm of its chance to be drawn; empty without negatives.
    more_labels : (B, M) float32 or None
        0 or 1, of the schema's further labels; None where it names none.
    weights : (B,) float32 or None
        How much each example counts in the loss, 0 or more; None: all alike.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    keys: NDArray[np.uint64]
    sparse: NDArray[np.int32]
    ragged: Mapping[str, Ragged[np.int32]]
    negatives: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    log_q: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    more_labels: NDArray[np.float32] | None = None
    weights: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return self.labels.size

    @property
    def every_label(self) -> NDArray[np.float32]:
        """(B,) labels, or (B, T) where the schema names T of them, the first one first."""
        if self.more_labels is None:
            return self.labels
        return np.concatenate([self.labels[:, None], self.more_labels], axis=1)
