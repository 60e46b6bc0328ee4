"""Vectors and first-order terms of the fields of a batch."""

from __future__ import annotations

import numpy as np

from cython_ext.model.row_places import gather_fields, pool_rows, weigh_fields
from pslib.batch import Batch
from pslib.schema import Schema
from rec_models.engine.occurrences import Occurrences, pooled_addends
from rec_models.engine.tape import Array, Tape, Var, layer


@layer
def embedding(tape: Tape, rows: Var, batch: Batch, schema: Schema, beside: int = 0) -> Var:
    """Look up one vector for each sparse and ragged field of every example.

    Parameters
    ----------
    rows : (U, D)
        Rows of ``batch.keys``.
    batch : Batch
    schema : Schema
        Ragged fields and their pooling.
    beside : int
        Floats left free in memory after the vectors of each example, so that `concat` copies no vector.

    Returns
    -------
    (B, F, D)
        Sparse fields first, then ragged ones, in the schema's order. A sparse field's vector is its row, a
        ragged field's the sum or mean of its rows (zeros for an empty list). Backward: each row sums the
        gradients of its occurrences, first those in sparse fields by example, then ragged field by field.
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
            rows.accumulate_occurrences(Occurrences.of(batch), gradient[:, :sparse_fields].reshape(B, split))
        for i, field in enumerate(schema.ragged, sparse_fields):
            addends = pooled_addends(gradient[:, i], batch.ragged[field.name], field)
            rows.accumulate_occurrences(Occurrences.of(batch, field.name), addends)

    output = tape.record(room[:, : fields * D].reshape(B, fields, D), backward)
    output.room = room
    return output


@layer
def list_vectors(tape: Tape, rows: Var, batch: Batch, field: str) -> Var:
    """Look up the row of every element of a ragged field, without pooling.

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
        One list after the other, without padding; N is the number of elements. Backward: each row sums the
        gradients of its elements in order.
    """
    elements = Occurrences.of_elements(batch, field)
    value = np.empty((elements.rows.size, rows.value.shape[1]), rows.value.dtype)
    gather_fields(rows.value, elements.rows[:, None], value)

    def backward(gradient: Array) -> None:
        rows.accumulate_occurrences(elements, np.ascontiguousarray(gradient))

    return tape.record(value, backward)


@layer
def first_order(tape: Tape, weights: Var, batch: Batch, schema: Schema) -> Var:
    """First-order term: the sum of the weights of an example's keys.

    Parameters
    ----------
    weights : (U, 1)
        One weight for each of ``batch.keys``.
    batch : Batch
    schema : Schema
        Ragged fields and their pooling.

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
            weights.accumulate_occurrences(Occurrences.of(batch), column)
        for field in schema.ragged:
            addends = pooled_addends(column, batch.ragged[field.name], field)
            weights.accumulate_occurrences(Occurrences.of(batch, field.name), addends)

    return tape.record(value, backward)


@layer
def dot(tape: Tape, x: Array, weights: Var) -> Var:
    """First-order term of the dense fields.

    Parameters
    ----------
    x : (B, N)
        Data, not a Var: no gradient flows into it.
    weights : (N,)

    Returns
    -------
    (B,)
        ``y = x w``; backward ``dw = x^T dy``.
    """

    def backward(gradient: Array) -> None:
        weights.accumulate(x.T @ gradient)

    return tape.record(x @ weights.value, backward)


@layer
def dense_vectors(tape: Tape, x: Array, weights: Var) -> Var:
    """Compute a vector for each dense field, proportional to its value.

    Parameters
    ----------
    x : (B, N)
        Data, not a Var: no gradient flows into it.
    weights : (N, D)

    Returns
    -------
    (B, N, D)
        ``e_n = x_n v_n``; backward ``dv_n = sum over the batch of x_n de_n``.

    Notes
    -----
    Song et al., AutoInt, CIKM 2019, arXiv:1810.11921, eq. 4.
    """
    numbers = x.astype(weights.value.dtype, copy=False)

    def backward(gradient: Array) -> None:
        weights.accumulate(np.einsum("bn,bnd->nd", numbers, gradient), owned=True)

    return tape.record(numbers[:, :, None] * weights.value, backward)
