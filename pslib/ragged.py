"""Ragged arrays: any number of values an example, in Arrow's words, never padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ragged"]

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
        When offsets do not start at 0, decrease, or do not end at the number of values.
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
        """Of offsets that a kernel has made, which are not looked at again: 5 us a batch of 4,096 lists."""
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
