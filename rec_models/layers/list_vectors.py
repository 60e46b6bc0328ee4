"""Vectors of the elements of lists, one each and not pooled: what attention to a sequence reads."""

from __future__ import annotations

import numpy as np

from cython_ext.model.row_places import gather_fields
from pslib.batch import Batch
from rec_models.places import Places
from rec_models.tape import Array, Tape, Var

__all__ = ["list_vectors"]


def list_vectors(tape: Tape, rows: Var, batch: Batch, field: str) -> Var:
    """Give every element of a ragged field its row.

    Parameters
    ----------
    rows : (U, D)
        Rows of ``batch.keys``.
    batch : Batch
    field : str
        A ragged field.

    Returns
    -------
    (N, D)
        One list after the other; N is the number of elements, nothing is padded. Backward: each row sums the
        gradients of its elements in their order.
    """
    places = Places.of_elements(batch, field)
    value = np.empty((places.rows.size, rows.value.shape[1]), rows.value.dtype)
    gather_fields(rows.value, places.rows[:, None], value)

    def backward(gradient: Array) -> None:
        rows.accumulate_places(places, np.ascontiguousarray(gradient))

    return tape.record(value, backward)
