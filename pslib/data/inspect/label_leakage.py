"""Label leakage check: finds columns that copy the label, nearly do so, or are known only with it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from pslib.data.inspect.row_sample import RowSample

CHANCE = 1e-12
"""Significance level: a column is a leak if chance gives such a result with less probability."""

NEAR_AUC = 0.95
"""AUC of a column alone from which on it is suspect.

The largest was 0.92 in the Frappe log, of the item, as its negatives are drawn; 0.68 in Avazu's, 0.67 in
Criteo's.
"""
NEAR_ROWS = 50
"""Fewest rows of each label for that AUC: its standard error is then below 0.03."""

Bools = NDArray[np.bool_]


class LabelSample:
    """Comparison of columns with the label, on a sample of rows.

    Parameters
    ----------
    rows : RowSample
    label : str
        Column of 0 and 1.
    """

    def __init__(self, rows: RowSample, label: str) -> None:
        self._rows = rows
        self._positive = np.zeros(0, np.bool_)
        if (column := rows.column(label)) is not None:
            numbers = column.cast(pa.float64(), safe=False).fill_null(0)
            self._positive = numbers.to_numpy(zero_copy_only=False) == 1

    def leak(self, name: str) -> str | None:
        """Reason why a column leaks the label; None if no leak is found."""
        column = self._column(name)
        why = None if column is None else leak_of(column, self._positive)
        return None if why is None else f"{why}, in {self._positive.size:,} rows that were looked at"

    def auc_alone(self, name: str) -> float | None:
        """AUC of the label by this column alone, if it is suspiciously large; None if it is not."""
        column = self._column(name)
        auc = 0.0 if column is None else auc_by(column, self._positive)
        return auc if auc >= NEAR_AUC else None

    def _column(self, name: str) -> pa.Array | None:
        column = self._rows.column(name)
        if column is None or len(column) != self._positive.size:  # damaged, or not in all files
            return None
        return column


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


def auc_by(values: pa.Array, positive: Bools) -> float:
    """AUC of the label by these values; 0.0 where there are too few rows.

    It is the larger one of two: by the share of label 1 of the same value in every other row, since a value
    would know the label of its own row, and, of numbers, by their size.
    """
    learns = np.arange(positive.size) % 2 == 0
    tests = ~learns
    if min(positive[tests].sum(), (~positive[tests]).sum()) < NEAR_ROWS:
        return 0.0
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(codes[learns], minlength=codes.max() + 1)
    ones = np.bincount(codes[learns], positive[learns], codes.max() + 1)
    share = np.divide(ones, counts, out=np.full(counts.size, positive[learns].mean()), where=counts > 0)
    best = _auc(share[codes[tests]], positive[tests])
    if types.is_floating(values.type) or types.is_integer(values.type):
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        known = np.isfinite(numbers)
        if min(positive[known].sum(), (~positive[known]).sum()) >= NEAR_ROWS:
            by_size = _auc(numbers[known], positive[known])
            best = max(best, by_size, 1 - by_size)
    return best


def _auc(scores: NDArray[np.float64], positive: Bools) -> float:
    """AUC by the scores; equal ones count half."""
    _, codes = np.unique(scores, return_inverse=True)
    ones = np.bincount(codes, positive)
    zeros = np.bincount(codes) - ones
    return float((ones * (np.cumsum(zeros) - zeros / 2)).sum() / (ones.sum() * zeros.sum()))


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
