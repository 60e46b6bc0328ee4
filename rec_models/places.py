"""Places of a batch that refer to rows: those of all sparse fields, or of one ragged field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.row_places import occurrences, sum_occurrences
from pslib.batch import Batch, Ragged
from pslib.schema import RaggedField

__all__ = ["Listed", "Places", "pooled_addends"]


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """Places sorted by row: row r is at places ``order[starts[r]:starts[r + 1]]``."""

    order: NDArray[np.int32]
    starts: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Rows of the examples of a batch, and accumulation of their gradients.

    Attributes
    ----------
    field : str or None
        Ragged field; None: all sparse fields.
    rows : (n,) int32
        Row of each place.
    width : int
        Places of an example; 1 for a ragged field.
    owners : (n,) int32 or None
        Example of each place of a ragged field; None if each place has its own addend.
    """

    field: str | None
    rows: NDArray[np.int32]
    width: int
    owners: NDArray[np.int32] | None

    @staticmethod
    def of(batch: Batch, field: str | None = None) -> Places:
        """Return the places of a ragged field, or without one of the sparse fields, example by example."""
        if field is None:
            return Places(None, batch.sparse.reshape(-1), batch.sparse.shape[1], None)
        ragged: Ragged[np.int32] = batch.ragged[field]
        examples = np.arange(len(ragged), dtype=np.int32)
        return Places(field, ragged.values, 1, np.repeat(examples, ragged.lengths))

    @staticmethod
    def of_elements(batch: Batch, field: str) -> Places:
        """Return the places of a ragged field whose elements each have their own addend."""
        return Places(field, batch.ragged[field].values, 1, None)

    def whole(self, batch: Batch) -> Places:
        """Return the same places of the whole batch, if these are of a part."""
        if self.field is not None and self.owners is None:
            return Places.of_elements(batch, self.field)
        return Places.of(batch, self.field)

    def listed(
        self, rows: int, order: NDArray[np.int32] | None = None, starts: NDArray[np.int32] | None = None
    ) -> Listed:
        """Sort the places by row; those of a row stay in order.

        Parameters
        ----------
        rows : int
        order, starts : (n,) and (rows + 1,) int32, changed, or None
            Output arrays; None: new arrays.

        Raises
        ------
        ValueError
            When a place refers to no existing row.
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
        """Add the addends of places to rows ``first`` to ``last - 1`` of ``out`` (U, D), in order of places.

        Parameters
        ----------
        listed : Listed
            Result of `listed`.
        addends : (B, width * D), or (B, D) if all places of an example have the same addend, or (n, D) for
            places of elements
        out : (U, D), changed
        first, last : int
            None: to the last row.
        """
        if self.rows.size:
            last = out.shape[0] if last is None else last
            sum_occurrences(listed.order, listed.starts, first, last, addends, self.width, self.owners, out)

    def sum(self, addends: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the sum of each row's addends, (U, D); ``addends`` as for `add`."""
        out = np.zeros(shape, addends.dtype)
        self.add(self.listed(shape[0]), addends, out)
        return out


def pooled_addends(gradient: NDArray[Any], ragged: Ragged[Any], field: RaggedField) -> NDArray[Any]:
    """Return the gradient for each place of a pooled vector, (B, D).

    For a sum it is the gradient of the vector, for a mean that gradient divided by the list's length.
    """
    if field.pooling != "mean":
        return gradient
    return gradient / np.maximum(1, ragged.lengths)[:, None].astype(gradient.dtype)
