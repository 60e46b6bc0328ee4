"""Rows of a batch as a variable of one part, whose gradients are recorded and summed later.

A large batch is computed in parts of some hundred examples, each with its own tape, by several threads. Sums
over the whole batch wait for all parts: `RowsVar`, and `DenseVar` of `rec_models.engine.products`, record
their gradients instead of adding them. So no part needs arrays of the size of all rows or of a weight matrix,
and the order of sums does not depend on the threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from rec_models.engine.occurrences import Occurrences
from rec_models.engine.tape import Array, Var


@dataclass(frozen=True, slots=True)
class RowsGradient:
    """One gradient of a part for columns ``start`` to ``stop - 1`` of its rows.

    ``occurrences`` None: ``addends`` is the (U, D) gradient of all rows.
    """

    occurrences: Occurrences | None
    addends: Array
    start: int
    stop: int


class RowsVar(Var):
    """Rows of a batch in the tape of one part, which records gradients.

    Parameters
    ----------
    value : (U, D)
    recorded : list of RowsGradient
        Recorded gradients, in order; shared with `columns` of the var.
    start : int
        First column of ``value`` in the table's row.
    """

    __slots__ = ("recorded", "start")

    def __init__(self, value: Array, recorded: list[RowsGradient], start: int = 0) -> None:
        super().__init__(value)
        self.recorded, self.start = recorded, start

    def columns(self, piece: slice) -> RowsVar:
        """Return some columns of these rows as a `RowsVar`."""
        return RowsVar(self.value[:, piece], self.recorded, self.start + piece.start)

    def accumulate(self, gradient: Array, *, owned: bool = False) -> None:
        """Record a gradient of all rows."""
        self._record(None, gradient)

    def accumulate_occurrences(self, occurrences: Occurrences, addends: Array) -> None:
        """Record gradients of occurrences of rows."""
        self._record(occurrences, addends)

    def _record(self, occurrences: Occurrences | None, addends: Array) -> None:
        stop = self.start + self.value.shape[1]
        self.recorded.append(RowsGradient(occurrences, addends, self.start, stop))
