"""Occurrences of rows in a batch, and sums of their gradients by row (scatter-add in a fixed order)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.row_places import occurrences, sum_occurrences
from pslib.batch import Batch, Ragged
from pslib.schema import RaggedField


@dataclass(frozen=True, slots=True, eq=False)
class SortedOccurrences:
    """Occurrences sorted by row: those of row r are ``order[starts[r]:starts[r + 1]]``."""

    order: NDArray[np.int32]
    starts: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Occurrences:
    """Rows that the examples of a batch refer to: by all sparse fields, or by one ragged field.

    Attributes
    ----------
    field : str or None
        Ragged field; None: all sparse fields.
    rows : (n,) int32
        Row of each occurrence.
    width : int
        Occurrences of an example; 1 for a ragged field.
    owners : (n,) int32 or None
        Example of each occurrence of a ragged field; None if each occurrence has its own addend.
    """

    field: str | None
    rows: NDArray[np.int32]
    width: int = 1
    owners: NDArray[np.int32] | None = None

    @staticmethod
    def of(batch: Batch, field: str | None = None) -> Occurrences:
        """Return the occurrences of a ragged field; without one those of the sparse fields, by example."""
        if field is None:
            return Occurrences(None, batch.sparse.reshape(-1), batch.sparse.shape[1])
        ragged: Ragged[np.int32] = batch.ragged[field]
        examples = np.arange(len(ragged), dtype=np.int32)
        return Occurrences(field, ragged.values, 1, np.repeat(examples, ragged.lengths))

    @staticmethod
    def of_elements(batch: Batch, field: str) -> Occurrences:
        """Return the occurrences of a ragged field whose elements each have their own addend."""
        return Occurrences(field, batch.ragged[field].values)

    def whole(self, batch: Batch) -> Occurrences:
        """Return the same occurrences of the whole batch, if these are of a part."""
        if self.field is not None and self.owners is None:
            return Occurrences.of_elements(batch, self.field)
        return Occurrences.of(batch, self.field)

    def sorted_by_row(
        self, rows: int, order: NDArray[np.int32] | None = None, starts: NDArray[np.int32] | None = None
    ) -> SortedOccurrences:
        """Sort by row; the occurrences of a row stay in order.

        Parameters
        ----------
        rows : int
            Number of rows, U.
        order, starts : (n,) and (U + 1,) int32, changed, or None
            Output arrays; None: new arrays.

        Raises
        ------
        ValueError
            When an occurrence refers to no existing row.
        """
        order = np.empty(self.rows.size, np.int32) if order is None else order
        starts = np.empty(rows + 1, np.int32) if starts is None else starts
        occurrences(self.rows, order, starts)
        return SortedOccurrences(order, starts)

    def add(
        self,
        by_row: SortedOccurrences,
        addends: NDArray[Any],
        out: NDArray[Any],
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """Add addends to rows ``first`` to ``last - 1`` of ``out`` (U, D), in order of occurrence.

        Parameters
        ----------
        by_row : SortedOccurrences
            Result of `sorted_by_row`.
        addends : (B, width * D), or (B, D) if all occurrences of an example have the same addend, or (n, D)
            for occurrences of elements
        out : (U, D), changed
        first, last : int
            None: to the last row.
        """
        if self.rows.size:
            last = out.shape[0] if last is None else last
            sum_occurrences(by_row.order, by_row.starts, first, last, addends, self.width, self.owners, out)

    def sum(self, addends: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the sum of each row's addends, (U, D); ``addends`` as for `add`."""
        out = np.zeros(shape, addends.dtype)
        self.add(self.sorted_by_row(shape[0]), addends, out)
        return out


def pooled_addends(gradient: NDArray[Any], ragged: Ragged[Any], field: RaggedField) -> NDArray[Any]:
    """Return the gradient of each element from the gradient of the pooled vectors, (B, D).

    For a sum it is the gradient of the vector, for a mean that gradient divided by the list's length.
    """
    if field.pooling != "mean":
        return gradient
    return gradient / np.maximum(1, ragged.lengths)[:, None].astype(gradient.dtype)
