"""From distinct rows to one vector a field."""

from __future__ import annotations

from cython_ext.model.row_places import gather_fields, pool_rows
from pslib.batch import Batch
from pslib.schema import Schema
from rec_models.places import Places, pooled_addends
from rec_models.tape import Array, Tape, Var

__all__ = ["embedding"]


def embedding(tape: Tape, rows: Var, batch: Batch, schema: Schema, beside: int = 0) -> Var:
    """Give every example one vector for each sparse and ragged field.

    Parameters
    ----------
    rows : (U, D)
        Rows of ``batch.keys``.
    batch : Batch
    schema : Schema
        Names the ragged fields and their pooling.
    beside : int
        Floats left free in memory after the vectors of each example, so that `concat` copies no vector.

    Returns
    -------
    (B, F, D)
        Sparse fields first, then ragged ones, in the schema's order. A sparse field's vector is its row, a
        ragged field's the sum or mean of its rows (zeros for an empty list). Backward: each row sums the
        gradients of its places, sparse places in example order first, then field by field.
    """
    B, sparse_fields = batch.sparse.shape
    D = rows.value.shape[1]
    fields, split = sparse_fields + len(schema.ragged), sparse_fields * D
    room = tape.empty((B, fields * D + beside), rows.value.dtype)
    gather_fields(rows.value, batch.sparse, room[:, :split])
    for start, field in zip(range(split, fields * D, D), schema.ragged, strict=True):
        ragged = batch.ragged[field.name]
        pooled = pool_rows(rows.value, ragged.values, ragged.offsets, field.pooling == "mean")
        room[:, start : start + D] = pooled

    def backward(gradient: Array) -> None:
        if sparse_fields:
            rows.accumulate_places(Places.of(batch), gradient[:, :sparse_fields].reshape(B, split))
        for place, field in enumerate(schema.ragged, sparse_fields):
            addends = pooled_addends(gradient[:, place], batch.ragged[field.name], field)
            rows.accumulate_places(Places.of(batch, field.name), addends)

    output = tape.record(room[:, : fields * D].reshape(B, fields, D), backward)
    output.room = room
    return output
