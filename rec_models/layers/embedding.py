"""From distinct rows to one vector a field."""

from __future__ import annotations

import numpy as np

from cython_ext.ragged_pool import gather_rows, pool_rows, pool_rows_gradient, scatter_add_rows
from pslib.batch import Batch
from pslib.schema import Schema
from rec_models.tape import Array, Tape, Var

__all__ = ["embedding"]


def embedding(tape: Tape, rows: Var, batch: Batch, schema: Schema) -> Var:
    """Give every example one vector for each sparse and ragged field.

    Parameters
    ----------
    rows : (U, D)
        Rows of ``batch.keys``.
    batch : Batch
    schema : Schema
        Names the ragged fields and their pooling.

    Returns
    -------
    (B, F, D)
        Sparse fields first, then ragged ones, in the schema's order. A sparse field's vector is its row, a
        ragged field's the sum or mean of its rows (zeros for an empty list). Backward: each row sums the
        gradients of its places, sparse places in example order first, then field by field.
    """
    B, sparse_fields = batch.sparse.shape
    count, D = rows.value.shape
    places = batch.sparse.reshape(-1)
    lists = [(batch.ragged[field.name], field.pooling == "mean") for field in schema.ragged]
    value = gather_rows(rows.value, places).reshape(B, sparse_fields, D)
    if lists:
        value = np.concatenate([value, np.empty((B, len(lists), D), value.dtype)], axis=1)
    for field, (ragged, mean) in enumerate(lists, sparse_fields):
        value[:, field] = pool_rows(rows.value, ragged.values, ragged.offsets, mean)

    def backward(gradient: Array) -> None:
        from_sparse = np.ascontiguousarray(gradient[:, :sparse_fields]).reshape(places.size, D)
        total = scatter_add_rows(from_sparse, places, count)
        for field, (ragged, mean) in enumerate(lists, sparse_fields):
            from_field = np.ascontiguousarray(gradient[:, field])
            total += pool_rows_gradient(from_field, ragged.values, ragged.offsets, count, mean)
        rows.accumulate(total)

    return tape.record(value, backward)
