"""Samples of a run's figures over time, in memory that does not grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from typing import Any

import numpy as np

ROWS_MAX = 720
"""Rows kept: at one a second 12 minutes, with neighbours merged an hour at 8 s, a day at 4 minutes."""

COLUMNS: Mapping[str, tuple[str, str, str]] = {
    "seconds": ("run", "seconds", "last"),
    "examples": ("run", "examples", "last"),
    "examples_per_s": ("run", "examples_per_s", "mean"),
    "loss": ("run", "loss", "mean"),
    "auc": ("run", "auc", "mean"),
    "calibration": ("run", "calibration", "mean"),
    "staleness": ("traffic", "staleness_mean", "mean"),
    "rows": ("servers", "rows", "last"),
    "memory_bytes": ("servers", "memory_bytes", "last"),
    "bytes_in_flight": ("traffic", "bytes_in_flight", "mean"),
    "ack_p99_s": ("traffic", "ack_p99_s", "max"),
}
"""Columns: where a state has the figure, summed over servers; and what stands for two neighbours."""

_WHOLE = ("examples", "rows", "memory_bytes", "bytes_in_flight")


class Samples:
    """Table of samples, at most `ROWS_MAX` rows of equal numbers of states.

    When it is full, each two neighbours become one, and from then on a row stands for twice as many states.
    The last row is that of the states since, so the newest is always there. All memory is taken at once.
    """

    def __init__(self) -> None:
        self._values = np.full((ROWS_MAX, len(COLUMNS)), nan)
        self._states = np.zeros(ROWS_MAX, np.int64)
        """Number of states that each row stands for."""
        self._count, self._each = 0, 1

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Memory of the rows."""
        return int(self._values.nbytes + self._states.nbytes)

    def add(self, state: Mapping[str, Any]) -> None:
        """Add a state."""
        row = np.array([_figure(state, *COLUMNS[name][:2]) for name in COLUMNS])
        last = self._count - 1
        if last >= 0 and self._states[last] < self._each:
            self._values[last] = _merged(self._values[last], row, int(self._states[last]), 1)
            self._states[last] += 1
            return
        if self._count == ROWS_MAX:
            self._merge()
        self._values[self._count], self._states[self._count] = row, 1
        self._count += 1

    def plain(self) -> dict[str, Any]:
        """Return ``columns`` and ``rows`` as plain values, for JSON."""
        rows = [_plain_row(row) for row in self._values[: self._count].tolist()]
        return {"columns": list(COLUMNS), "rows": rows}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Samples:
        """Build the samples of a file, whatever columns it has; what is no number is left out."""
        samples = Samples()
        names, rows = (
            found if isinstance(found := plain.get(one), list) else [] for one in ("columns", "rows")
        )
        places = {name: names.index(name) for name in COLUMNS if name in names}
        for row in rows[-ROWS_MAX:]:
            known = dict(enumerate(row)) if isinstance(row, list) else {}
            values = [_number(known.get(places.get(name, -1))) for name in COLUMNS]
            place = samples._count
            samples._values[place], samples._states[place] = values, 1
            samples._count += 1
        return samples

    def _merge(self) -> None:
        """Merge each two neighbours."""
        half = self._count // 2
        for index in range(half):
            first, second = 2 * index, 2 * index + 1
            counts = (int(self._states[first]), int(self._states[second]))
            self._values[index] = _merged(self._values[first], self._values[second], *counts)
            self._states[index] = sum(counts)
        self._values[half:], self._states[half:] = nan, 0
        self._count, self._each = half, 2 * self._each


def _figure(state: Mapping[str, Any], part: str, name: str) -> float:
    """Return a figure of a state, nan if it is unknown; that of servers is a sum."""
    about = state[part]
    if part == "servers":
        return float(sum(one[name] for one in about))
    return _number(about[name])


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else nan


def _plain_row(row: Sequence[float]) -> list[float | int | None]:
    return [_plain(name, value) for name, value in zip(COLUMNS, row, strict=True)]


def _plain(name: str, value: float) -> float | int | None:
    if isnan(value):
        return None
    return round(value) if name in _WHOLE else value


def _mean(first: float, second: float, counts: tuple[int, int]) -> float:
    return (first * counts[0] + second * counts[1]) / sum(counts)


_JOINS: Mapping[str, Callable[[float, float, tuple[int, int]], float]] = {
    "last": lambda _first, second, _counts: second,
    "mean": _mean,
    "max": lambda first, second, _counts: max(first, second),
}


def _merged(first: Any, second: Any, *counts: int) -> list[float]:
    """Merge two rows; where one has no value, that of the other stands."""
    pairs = zip(COLUMNS.values(), first.tolist(), second.tolist(), strict=True)
    return [
        b if isnan(a) else a if isnan(b) else _JOINS[how](a, b, (counts[0], counts[1]))
        for (_part, _name, how), a, b in pairs
    ]
