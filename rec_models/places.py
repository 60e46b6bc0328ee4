"""Places of a batch that name rows: all of its sparse fields, or one ragged field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.row_places import occurrences, sum_occurrences
from pslib.batch import Batch
from pslib.ragged import Ragged
from pslib.schema import RaggedField

__all__ = ["Listed", "Places", "pooled_addends"]


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Places listed row by row: row r stands at places ``order[starts[r]:starts[r + 1]]``."""

    order: NDArray[np.int32]
    starts: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Which rows the examples of a batch name, and how gradients go back to them.

    Attributes
    ----------
    field : str or None
        The ragged field; None: all sparse fields.
    rows : (n,) int32
        For each place, the row it names.
    width : int
        Places of an example; 1 for a ragged field.
    owners : (n,) int32 or None
        The example of each place of a ragged field; None where places give addends of their own.
    """

    field: str | None
    rows: NDArray[np.int32]
    width: int
    owners: NDArray[np.int32] | None

    @staticmethod
    def of(batch: Batch, field: str | None = None) -> Places:
        """Places of a ragged field, or without one of the sparse fields, example by example."""
        if field is None:
            return Places(None, batch.sparse.reshape(-1), batch.sparse.shape[1], None)
        ragged: Ragged[np.int32] = batch.ragged[field]
        examples = np.arange(len(ragged), dtype=np.int32)
        return Places(field, ragged.values, 1, np.repeat(examples, ragged.lengths))

    @staticmethod
    def of_elements(batch: Batch, field: str) -> Places:
        """Places of a ragged field whose elements each give their row something of their own."""
        return Places(field, batch.ragged[field].values, 1, None)

    def whole(self, batch: Batch) -> Places:
        """The same places of the whole batch, where these are of a part of it."""
        if self.field is not None and self.owners is None:
            return Places.of_elements(batch, self.field)
        return Places.of(batch, self.field)

    def listed(
        self, rows: int, order: NDArray[np.int32] | None = None, starts: NDArray[np.int32] | None = None
    ) -> Listed:
        """Sort the places by the row they name, of so many; those of a row stay in order.

        Parameters
        ----------
        rows : int
        order, starts : (n,) and (rows + 1,) int32, changed, or None
            Where the lists are made; None: new arrays.

        Raises
        ------
        ValueError
            When a place names no row.
        """
        order = np.empty(self.rows.size, np.int32) if order is None else order
        starts = np.empty(rows + 1, np.int32) if starts is None else starts
        occurrences(self.rows, order, starts)
        return Listed(order, starts)

    def add(
        self,
        listed: Listed,
        addends: NDArray[Any],
        out: NDArray[Any],
        first: int = 0,
        last: int | None = None,
    ) -> None:
        """Add to rows ``first`` to ``last - 1`` of ``out`` (U, D) what their places give, in order of places.

        Parameters
        ----------
        listed : Listed
            What `listed` gave.
        addends : (B, width * D), or (B, D) where all places of an example give the same, or (n, D) for the
            places of elements
        out : (U, D), changed
        first, last : int
            None: to the last row.
        """
        if self.rows.size:
            last = out.shape[0] if last is None else last
            sum_occurrences(listed.order, listed.starts, first, last, addends, self.width, self.owners, out)

    def sum(self, addends: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """(U, D) of this shape: what the places of each row give; ``addends`` as for `add`."""
        out = np.zeros(shape, addends.dtype)
        self.add(self.listed(shape[0]), addends, out)
        return out


def pooled_addends(gradient: NDArray[Any], ragged: Ragged[Any], field: RaggedField) -> NDArray[Any]:
    """(B, D) gradient of a pooled vector, for each of the places it was pooled from.

    Backward of a sum hands on the gradient, backward of a mean the gradient divided by the list's length.
    """
    if field.pooling != "mean":
        return gradient
    return gradient / np.maximum(1, ragged.lengths)[:, None].astype(gradient.dtype)
