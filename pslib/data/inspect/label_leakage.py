"""Label leakage check: finds columns that copy the label, or are known only together with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from pslib.data.dataset import open_parquet
from pslib.data.parquet_files import group_batches

SAMPLE_ROWS = 65_536
SAMPLE_GROUPS = 8
"""Row groups sampled, evenly over the files, since data may be sorted by its label."""
CHANCE = 1e-12
"""Significance level: a column is a leak if chance gives such a result with less probability."""

Bools = NDArray[np.bool_]


class LabelSample:
    """Sample of rows, to compare columns with the label.

    Parameters
    ----------
    files : sequence of (str, sequence of int)
        Files, each with the rows of its row groups.
    label : str
        Column of 0 and 1.
    """

    def __init__(self, files: Sequence[tuple[str, Sequence[int]]], label: str) -> None:
        groups = [(file, i) for file, rows in files for i in range(len(rows)) if rows[i]]
        chosen = np.unique(np.linspace(0, len(groups) - 1, min(SAMPLE_GROUPS, len(groups))).astype(int))
        self._groups = [groups[i] for i in chosen]
        self._positive = np.zeros(0, np.bool_)
        if (column := self._column(label)) is not None:
            numbers = column.cast(pa.float64(), safe=False).fill_null(0)
            self._positive = numbers.to_numpy(zero_copy_only=False) == 1

    def leak(self, name: str) -> str | None:
        """Reason why a column leaks the label; None if no leak is found."""
        column = self._column(name)
        why = None if column is None else leak_of(column, self._positive)
        return None if why is None else f"{why}, in {self._positive.size:,} rows that were looked at"

    def _column(self, name: str) -> pa.Array | None:
        """Values of a column in the sample; None for a damaged file, which the report covers."""
        try:
            return self._read(name)
        except (OSError, pa.ArrowException):
            return None

    def _read(self, name: str) -> pa.Array:
        rows = SAMPLE_ROWS // len(self._groups)
        parts: list[pa.Array] = []
        for file, group in self._groups:
            with open_parquet(file) as opened:
                part = _first_rows(opened, group, name, rows)
            parts.append(part.cast(part.type.value_type) if types.is_dictionary(part.type) else part)
        kind = next((part.type for part in parts if not types.is_null(part.type)), parts[0].type)
        return pa.concat_arrays([part.cast(kind, safe=False) for part in parts])


def _first_rows(opened: pq.ParquetFile, group: int, name: str, rows: int) -> pa.Array:
    """First rows of a column of a row group, as many for each column."""
    found: list[pa.Array] = []
    for batch in group_batches(opened, group, [name], rows):
        found.append(batch.column(name)[: rows - sum(map(len, found))])
        if sum(map(len, found)) == rows:
            break
    return pa.concat_arrays(found)


def leak_of(values: pa.Array, positive: Bools) -> str | None:
    """Reason why these values leak the label; None if they do not, or the rows are too few to decide.

    A value that occurs n times with one label only does so by chance with probability ``p^n + (1 - p)^n``,
    where p is the share of label 1; all values together with the product. Values that occur once carry no
    evidence. Numbers that are all larger with one label than with the other are a separate case.
    """
    share = float(positive.mean()) if positive.size else 0.0
    if not 0 < share < 1:
        return None
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(codes)
    ones = np.bincount(codes, positive, counts.size)
    if ((ones == 0) | (ones == counts)).all():
        luck = np.logaddexp(counts * np.log(share), counts * np.log1p(-share)).sum()
        if luck < np.log(CHANCE):
            what = "it is a copy of the label" if counts.size == 2 else "each value has one label alone"
            return f"{what}: it gives the label away"
    return _apart(values, positive)


def _apart(values: pa.Array, positive: Bools) -> str | None:
    """Same check for numbers that a threshold separates by label."""
    if not (types.is_floating(values.type) or types.is_integer(values.type)):
        return None
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    known = np.isfinite(numbers)
    high, low = numbers[known & positive], numbers[known & ~positive]
    fewer = min(high.size, low.size)
    # Chance separates n numbers by label with probability 2 / C(n, k), which is at most 2 * (k / n)^k.
    if fewer == 0 or np.log(2) + fewer * np.log(fewer / (high.size + low.size)) > np.log(CHANCE):
        return None
    if high.min() <= low.max() and low.min() <= high.max():
        return None
    return "a threshold on it divides the labels without an error: it gives the label away"
