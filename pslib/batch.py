"""Batches of keyed examples, as readers give and models take them, and ragged arrays in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

ScalarT = TypeVar("ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Ragged(Generic[ScalarT]):
    """``B`` lists of any length in two flat arrays.

    Attributes
    ----------
    values : (N,) array
        All lists one after the other.
    offsets : (B + 1,) int64
        List ``b`` is ``values[offsets[b]:offsets[b + 1]]``; ``offsets[0] == 0``, ``offsets[B] == N``.

    Raises
    ------
    ValueError
        If offsets do not start at 0, decrease, or do not end at the number of values.
    """

    values: NDArray[ScalarT]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        offsets = self.offsets
        if self.values.ndim != 1 or offsets.ndim != 1 or offsets.size == 0:
            raise ValueError(
                "Ragged expects 1-d values and at least one 1-d offset, "
                f"got {list(self.values.shape)} and {list(offsets.shape)}"
            )
        if offsets[0] != 0 or offsets[-1] != self.values.size or bool((offsets[1:] < offsets[:-1]).any()):
            raise ValueError(
                f"Ragged offsets must rise from 0 to {self.values.size}; got {offsets[0]} to {offsets[-1]}"
            )

    @classmethod
    def sound(cls, values: NDArray[ScalarT], offsets: NDArray[np.int64]) -> Ragged[ScalarT]:
        """Make one of offsets from a kernel, without the checks: these take 5 us for 4,096 lists."""
        ragged = cls.__new__(cls)
        object.__setattr__(ragged, "values", values)
        object.__setattr__(ragged, "offsets", offsets)
        return ragged

    def __len__(self) -> int:
        return self.offsets.size - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(B,) length of each list."""
        return np.diff(self.offsets)


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
        Logarithm of each key's chance to be drawn; empty without negatives.
    more_labels : (B, M) float32 or None
        0 or 1, of the schema's further labels; None where it names none.
    weights : (B,) float32 or None
        Weight of each example in the loss, 0 or more; None: all alike.
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
