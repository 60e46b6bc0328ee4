"""First-order term: one weight a key, summed."""

from __future__ import annotations

from cython_ext.model.row_places import pool_rows, weigh_fields
from pslib.batch import Batch
from pslib.schema import Schema
from rec_models.places import Places, pooled_addends
from rec_models.tape import Array, Tape, Var

__all__ = ["first_order"]


def first_order(tape: Tape, weights: Var, batch: Batch, schema: Schema) -> Var:
    """Sum the weights of an example's keys.

    Parameters
    ----------
    weights : (U, 1)
        One weight for each of ``batch.keys``.
    batch : Batch
    schema : Schema
        Names the ragged fields and their pooling.

    Returns
    -------
    (B,)
        ``sum over i of w_i x_i``: x is 1 for the key of a sparse field, and for a list of n keys 1 (sum) or
        1/n (mean) each. Backward ``dw_i = sum over the batch of x_i dy``.
    """
    value = tape.empty((batch.sparse.shape[0],), weights.value.dtype)
    weigh_fields(weights.value, batch.sparse, value)
    for field in schema.ragged:
        ragged = batch.ragged[field.name]
        value += pool_rows(weights.value, ragged.values, ragged.offsets, field.pooling == "mean")[:, 0]

    def backward(gradient: Array) -> None:
        column = gradient[:, None]
        if batch.sparse.shape[1]:
            weights.accumulate_places(Places.of(batch), column)
        for field in schema.ragged:
            addends = pooled_addends(column, batch.ragged[field.name], field)
            weights.accumulate_places(Places.of(batch, field.name), addends)

    return tape.record(value, backward)
