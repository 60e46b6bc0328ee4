"""Lists of different lengths, side by side in time and never padded.

Lists are ordered by length, the longest first. Then the first elements of all of them stand together, then
the second ones of those that have a second, and so on: step ``t`` is ``sizes[t]`` elements side by side, and
list ``i`` of the order is row ``i`` of every step that it reaches. A batch costs what its elements cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslib.ragged import Ragged

__all__ = ["Packed", "Prefixes", "one_step", "packed"]


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes:
    """Pairs of an element and one that is not after it, element by element.

    Attributes
    ----------
    items : (P,) int32
        The one that is not after it.
    owners : (P,) int64
        The element.
    starts : (N + 1,) int64
        Where the pairs of each element begin.
    """

    items: NDArray[np.int32]
    owners: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Where the elements of some lists stand.

    Attributes
    ----------
    order : (B,) int64
        The lists, longest first; equal lengths in their order.
    sizes : (T,) int64
        Lists that reach each step; descends.
    starts : (T + 1,) int64
        Where each step begins; the last is N, the number of elements.
    places : (N,) int64
        Which element of the `Ragged` stands there.
    values : (N,) int32
        What it is.
    """

    order: NDArray[np.int64]
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.int32]

    @property
    def times(self) -> NDArray[np.int64]:
        """(N,): how many elements of its list stand before each."""
        return np.repeat(np.arange(self.sizes.size), self.sizes)

    def prefixes(self, of: NDArray[np.integer] | None = None) -> Prefixes:
        """Pairs of each element with itself and those before it in its list.

        Parameters
        ----------
        of : (M,) integers or None
            Only of the elements that stand there: they are owners 0 to M - 1. None: of all.
        """
        ends = np.arange(self.starts[-1]) if of is None else of
        steps = self.times[ends]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(steps + 1)])
        owners = np.repeat(np.arange(ends.size), steps + 1)
        rows = ends - self.starts[steps]
        items = self.starts[np.arange(owners.size) - starts[owners]] + rows[owners]
        return Prefixes(items.astype(np.int32), owners, starts)

    def last(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Lists that have elements, and where the last one of each stands."""
        steps = np.repeat(np.arange(self.sizes.size), -np.diff(np.append(self.sizes, 0)))[::-1]
        rows = np.arange(steps.size)
        return self.order[: steps.size], self.starts[steps] + rows


def packed(lists: Ragged[np.int32], without_last: bool = False, at_most: int | None = None) -> Packed:
    """Pack lists.

    Parameters
    ----------
    lists : Ragged
    without_last : bool
        Leave out the last element of each list: it has no successor to predict.
    at_most : int or None
        Only so many elements of each list, the last ones that are not left out. None: all.
    """
    every = np.maximum(lists.lengths - without_last, 0)
    lengths = every if at_most is None else np.minimum(every, at_most)
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    sizes = lengths.size - np.searchsorted(np.sort(lengths), np.arange(longest), side="right")
    firsts = (lists.offsets[:-1] + every - lengths)[order]
    by_step = [firsts[:size] + t for t, size in enumerate(sizes.tolist())]
    places = np.concatenate([np.empty(0, np.int64), *by_step]).astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return Packed(order, sizes.astype(np.int64), starts, places, lists.values[places])


def one_step(rows: int) -> Packed:
    """Lists of one element each."""
    every = np.arange(rows)
    return Packed(every, np.full(1, rows), np.array([0, rows]), every, every.astype(np.int32))
