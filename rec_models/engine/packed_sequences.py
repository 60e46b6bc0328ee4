"""Packed sequences: lists of different lengths, stored step by step without padding.

Lists are sorted by length, longest first. The first elements of all lists are adjacent, then the second
elements of lists that have one, and so on: step ``t`` has ``sizes[t]`` elements, and list ``i`` of the order
is row ``i`` of every step that it reaches. The cost of a batch is that of its elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from pslib.batch import Ragged


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes:
    """Pairs of an element with itself or an earlier one, element by element.

    Attributes
    ----------
    items : (P,) int32
        Earlier or same element of each pair.
    owners : (P,) int64
        Element of each pair.
    starts : (N + 1,) int64
        Start of the pairs of each element.
    """

    items: NDArray[np.int32]
    owners: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Positions of the elements of packed lists.

    Attributes
    ----------
    order : (B,) int64
        Lists, longest first; equal lengths in their order.
    sizes : (T,) int64
        Number of lists that reach each step, descending.
    starts : (T + 1,) int64
        Start of each step; the last is N, the number of elements.
    indices : (N,) int64
        Index of the element in the `Ragged`.
    values : (N,) int32
        Value of the element.
    """

    order: NDArray[np.int64]
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.int32]

    @property
    def times(self) -> NDArray[np.int64]:
        """Return the step of each element, (N,): the number of earlier elements in its list."""
        return np.repeat(np.arange(self.sizes.size), self.sizes)

    @property
    def places(self) -> NDArray[np.int64]:
        """Return the position of each element of the `Ragged`, in its order, (N,)."""
        return np.argsort(self.indices)

    def prefixes(self, of: NDArray[np.integer] | None = None) -> Prefixes:
        """Return the pairs of each element with itself and earlier elements of its list.

        Parameters
        ----------
        of : (M,) integers or None
            Positions of the elements, which become owners 0 to M - 1. None: all.
        """
        ends = np.arange(self.starts[-1]) if of is None else of
        steps = self.times[ends]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(steps + 1)])
        owners = np.repeat(np.arange(ends.size), steps + 1)
        rows = ends - self.starts[steps]
        items = self.starts[np.arange(owners.size) - starts[owners]] + rows[owners]
        return Prefixes(items.astype(np.int32), owners, starts)

    def last(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the non-empty lists, and the position of the last element of each."""
        steps = np.repeat(np.arange(self.sizes.size), -np.diff(np.append(self.sizes, 0)))[::-1]
        rows = np.arange(steps.size)
        return self.order[: steps.size], self.starts[steps] + rows


@singledispatch
def packed(lists: Ragged[np.int32], without_last: bool = False, at_most: int | None = None) -> Packed:
    """Pack lists.

    Parameters
    ----------
    lists : Ragged
    without_last : bool
        Leave out the last element of each list, which has no next one to predict.
    at_most : int or None
        Keep at most this many last elements of each list. None: all.
    """
    every = np.maximum(lists.lengths - without_last, 0)
    lengths = every if at_most is None else np.minimum(every, at_most)
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    sizes = lengths.size - np.searchsorted(np.sort(lengths), np.arange(longest), side="right")
    firsts = (lists.offsets[:-1] + every - lengths)[order]
    by_step = [firsts[:size] + t for t, size in enumerate(sizes.tolist())]
    indices = np.concatenate([np.empty(0, np.int64), *by_step]).astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return Packed(order, sizes.astype(np.int64), starts, indices, lists.values[indices])


@singledispatch
def one_step(rows: int) -> Packed:
    """Pack lists of one element each."""
    every = np.arange(rows)
    return Packed(every, np.full(1, rows), np.array([0, rows]), every, every.astype(np.int32))
