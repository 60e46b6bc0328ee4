"""Example order and leases of an epoch, as a pure function of (seed, epoch).

Row groups are permuted, packed into windows, and the rows of each window are shuffled. A lease is a run of
one window's shuffled rows. There is no stateful generator: a permutation sorts the mixed numbers ``mix64(base
+ i)``, so any process computes the order of any window without those before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import mix64
from cython_ext.data.shuffle import shuffled
from pslib.errors import ConfigurationError

WINDOW_ROWS = 262_144
"""Rows shuffled together: 54 MB of keys for 26 sparse fields, decoded once and used for several leases."""

LEASE_ROWS_MAX = 65_536
"""Most rows delayed by one dead trainer; chosen leases are smaller unless one batch is larger."""

LEASES_WANTED = 32
"""Leases per epoch for small data, so that several trainers all get some."""

_MASK = (1 << 64) - 1
_GROUPS, _ROWS = 1, 2  # the two kinds of permutation


def default_lease_rows(rows_total: int, batch_rows: int) -> int:
    """Choose lease rows for a data size: whole batches, 1/32 of an epoch, at most LEASE_ROWS_MAX.

    Parameters
    ----------
    rows_total : int
        Rows of an epoch.
    batch_rows : int
        Rows of a batch, at least 1.

    Returns
    -------
    int
        A multiple of ``batch_rows``.
    """
    batches_max = max(1, LEASE_ROWS_MAX // batch_rows)
    return batch_rows * min(max(1, rows_total // (LEASES_WANTED * batch_rows)), batches_max)


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """Rows ``start`` to ``stop`` of one row group, given by its index among all row groups of the data."""

    row_group: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class LeasePiece:
    """Positions ``start`` to ``stop`` of one window's shuffled order: the examples of one lease."""

    window: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class _Plan:
    windows: tuple[tuple[GroupSlice, ...], ...]
    window_rows: tuple[int, ...]
    first_leases: tuple[int, ...]  # one per window, and the count at the end


@dataclass(frozen=True)
class Order:
    """Order of an epoch's examples and their division into leases.

    Parameters
    ----------
    seed : int
        0..2^64-1.
    row_counts : sequence of int
        Rows of each row group, in file order.
    lease_rows : int
        Most rows of a lease; the last lease of a window may be shorter.
    window_rows : int
        Most rows shuffled together. Row groups are kept whole if they fit; larger ones are split evenly.
    shuffle : bool
        False: file order, the same in every epoch.

    Raises
    ------
    ConfigurationError
        If a number is out of range or there is no row; lists all problems at once.

    Examples
    --------
    >>> order = Order(seed=7, row_counts=[100, 100, 50], lease_rows=64)
    >>> order.leases(epoch=0), order.lease(epoch=0, index=3)
    (4, LeasePiece(window=0, start=192, stop=250))
    """

    seed: int
    row_counts: Sequence[int]
    lease_rows: int
    window_rows: int = WINDOW_ROWS
    shuffle: bool = True
    _plans: dict[int, _Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_counts", tuple(int(rows) for rows in self.row_counts))
        problems = []
        if not 0 <= self.seed <= _MASK:
            problems.append(f"order: seed must be in 0..2^64-1, got {self.seed}")
        if self.lease_rows < 1:
            problems.append(f"order: lease_rows must be at least 1, got {self.lease_rows}")
        if self.window_rows < 1:
            problems.append(f"order: window_rows must be at least 1, got {self.window_rows}")
        if min(self.row_counts, default=0) < 0 or not any(self.row_counts):
            problems.append("order: expected row groups with at least one row together, got none")
        if problems:
            raise ConfigurationError(*problems)

    def leases(self, epoch: int) -> int:
        """Number of leases of an epoch (varies between epochs, since row groups pack differently)."""
        return self._plan(epoch).first_leases[-1]

    def lease(self, epoch: int, index: int) -> LeasePiece:
        """Return lease ``index`` of an epoch.

        Raises
        ------
        IndexError
            If the epoch has no such lease.
        """
        plan = self._plan(epoch)
        if not 0 <= index < plan.first_leases[-1]:
            raise IndexError(f"lease must be in 0..{plan.first_leases[-1] - 1} in epoch {epoch}, got {index}")
        window = bisect_right(plan.first_leases, index) - 1
        start = (index - plan.first_leases[window]) * self.lease_rows
        return LeasePiece(window, start, min(start + self.lease_rows, plan.window_rows[window]))

    def windows(self, epoch: int) -> tuple[tuple[GroupSlice, ...], ...]:
        """Return the row-group slices of each window of an epoch."""
        return self._plan(epoch).windows

    def window_order(self, epoch: int, window: int) -> NDArray[np.int64]:
        """Return the shuffled row numbers of one window.

        Returns
        -------
        (n,) int64
            Permutation of the window's rows, numbered across its slices in order.
        """
        rows = self._plan(epoch).window_rows[window]
        if not self.shuffle:
            return np.arange(rows, dtype=np.int64)
        return _permutation(rows, self.seed, _ROWS, epoch, window)

    def _plan(self, epoch: int) -> _Plan:
        epoch_key = epoch if self.shuffle else 0
        plan = self._plans.get(epoch_key)
        if plan is None:
            if len(self._plans) >= 2:  # the current epoch and its neighbour
                self._plans.clear()
            plan = self._plans[epoch_key] = self._make_plan(epoch)
        return plan

    def _make_plan(self, epoch: int) -> _Plan:
        count = len(self.row_counts)
        groups = _permutation(count, self.seed, _GROUPS, epoch).tolist() if self.shuffle else range(count)
        windows: list[tuple[GroupSlice, ...]] = []
        window: list[GroupSlice] = []
        rows = 0
        for piece in (piece for group in groups for piece in self._pieces(group)):
            if window and rows + piece.rows > self.window_rows:
                windows.append(tuple(window))
                window, rows = [], 0
            window.append(piece)
            rows += piece.rows
        windows.append(tuple(window))
        window_rows = tuple(sum(piece.rows for piece in pieces) for pieces in windows)
        leases = [-(-rows // self.lease_rows) for rows in window_rows]
        return _Plan(tuple(windows), window_rows, tuple(int(n) for n in np.cumsum([0, *leases])))

    def _pieces(self, group: int) -> list[GroupSlice]:
        """Return a row group whole, or split evenly if it is larger than a window."""
        rows = self.row_counts[group]
        count = -(-rows // self.window_rows)
        cuts = [rows * i // max(1, count) for i in range(count + 1)]
        return [GroupSlice(group, start, stop) for start, stop in pairwise(cuts)]


def _permutation(rows: int, *numbers: int) -> NDArray[np.int64]:
    """Return the permutation of 0..rows-1 named by the numbers.

    The mixed numbers are distinct (mixing is a bijection), so the sorted order does not depend on the sorting
    algorithm or its version.
    """
    base = 0
    for number in numbers:
        base = _mixed(base + (number + 1) * 0x9E3779B97F4A7C15)
    return shuffled(base, rows)


def _mixed(number: int) -> int:
    return int(mix64(np.array([number & _MASK], np.uint64))[0])
