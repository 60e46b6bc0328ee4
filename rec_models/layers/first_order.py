"""First-order term: one weight a key, summed."""

from __future__ import annotations

import numpy as np

from cython_ext.ragged_pool import pool_rows, pool_rows_gradient
from pslib.batch import Batch
from pslib.schema import Schema
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
    B, sparse_fields = batch.sparse.shape
    count = weights.value.shape[0]
    # The sparse fields of an example are a list too: one pass sums them without a (B, F) array between.
    lists = [(batch.sparse.reshape(-1), np.arange(B + 1, dtype=np.int64) * sparse_fields, False)]
    for field in schema.ragged:
        ragged = batch.ragged[field.name]
        lists.append((ragged.values, ragged.offsets, field.pooling == "mean"))
    value = np.zeros((B, 1), weights.value.dtype)
    for places, offsets, mean in lists:
        value += pool_rows(weights.value, places, offsets, mean)

    def backward(gradient: Array) -> None:
        column = np.ascontiguousarray(gradient).reshape(B, 1)
        total = np.zeros_like(weights.value)
        for places, offsets, mean in lists:
            total += pool_rows_gradient(column, places, offsets, count, mean)
        weights.accumulate(total)

    return tape.record(value.reshape(B), backward)
