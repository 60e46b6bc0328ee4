"""Attention among the fields of an example, and among the elements of lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from rec_models.engine.occurrences import Occurrences
from rec_models.engine.packed_sequences import Packed, Prefixes
from rec_models.engine.tape import Array, Empty, Tape, Var, layer
from rec_models.layers.activations import sigmoid_of

Backward: TypeAlias = Callable[[Array], tuple[Array, Array, Array]]
"""Function from the gradient of the output to the gradients of queries, keys and values."""

SHORT = 32
"""Up to this many fields, softmax runs column by column: NumPy reduces short rows slowly."""


@layer
def attention(tape: Tape, query: Var, key: Var, value: Var, heads: int) -> Var:
    """Multi-head self-attention of the fields of an example.

    Parameters
    ----------
    query, key, value : (B, F, A)
    heads : int
        Number of slices of the vectors, each with its own weights; a divisor of A.

    Returns
    -------
    (B, F, A)
        In each head ``s_ij = <q_i, k_j>``, ``a_i = softmax(s_i)``, ``y_i = sum over j of a_ij v_j``; backward
        ``da_ij = <dy_i, v_j>``, ``dv_j = sum over i of a_ij dy_i``, ``ds_i = a_i * (da_i - <a_i, da_i>)``,
        ``dq_i = sum over j of ds_ij k_j``, ``dk_j = sum over i of ds_ij q_i``.

    Notes
    -----
    Song et al., AutoInt, CIKM 2019, arXiv:1810.11921, eq. 5 and 6, where inner products are not scaled.
    """
    found, gradients = mixed(query.value, key.value, value.value, heads, empty=tape.empty)

    def backward(gradient: Array) -> None:
        for x, one in zip((query, key, value), gradients(gradient), strict=True):
            x.accumulate(one, owned=True)

    return tape.record(found, backward)


def mixed(
    q: Array, k: Array, v: Array, heads: int, causal: bool = False, empty: Empty = np.empty
) -> tuple[Array, Backward]:
    """Compute `attention` on arrays.

    Parameters
    ----------
    q, k, v : (B, F, A)
    heads : int
    causal : bool
        ``s_ij = -inf`` for j after i.
    empty : callable
        Allocator, see `Tape`.

    Returns
    -------
    (B, F, A), and a function that computes the gradients of ``q``, ``k`` and ``v``
    """
    B, F, A = q.shape

    def by_head(x: Array) -> Array:
        return x.reshape(B, F, heads, A // heads).transpose(0, 2, 1, 3)

    def product(left: Array, right: Array) -> Array:
        """Multiply by head, into (B, F, A)."""
        found = empty((B, F, A), left.dtype)
        np.matmul(left, right, out=by_head(found))
        return found

    q, k, v = by_head(q), by_head(k), by_head(v)
    weights = np.matmul(q, k.swapaxes(2, 3), out=empty((B, heads, F, F), q.dtype))
    if causal:
        weights[:, :, ~np.tri(F, dtype=bool)] = -np.inf
    _row_by_row(np.subtract, weights, _reduced(np.maximum, weights))
    np.exp(weights, out=weights)
    _row_by_row(np.divide, weights, _reduced(np.add, weights))

    def gradients(gradient: Array) -> tuple[Array, Array, Array]:
        dy = by_head(gradient)
        ds = np.matmul(dy, v.swapaxes(2, 3), out=empty(weights.shape, dy.dtype))
        _row_by_row(np.subtract, ds, np.einsum("bhij,bhij->bhi", weights, ds))
        ds *= weights
        return product(ds, k), product(ds.swapaxes(2, 3), q), product(weights.swapaxes(2, 3), dy)

    return product(weights, v), gradients


def _reduced(operation: np.ufunc, x: Array) -> Array:
    """Compute ``operation.reduce(x, axis=3)``, for short rows column by column."""
    if x.shape[3] > SHORT:
        return np.asarray(operation.reduce(x, axis=3))
    found = x[..., 0].copy()
    for column in range(1, x.shape[3]):
        operation(found, x[..., column], out=found)
    return found


def _row_by_row(operation: np.ufunc, x: Array, others: Array) -> None:
    """Compute ``x = operation(x, others[..., None])`` in place, for short rows column by column."""
    if x.shape[3] > SHORT:
        operation(x, others[..., None], out=x)
        return
    for column in range(x.shape[3]):
        operation(x[..., column], others, out=x[..., column])


@layer
def causal_attention(tape: Tape, query: Var, key: Var, value: Var, steps: Packed, heads: int) -> Var:
    """Multi-head self-attention of each element of a list to itself and earlier ones.

    Parameters
    ----------
    query, key, value : (N, A)
        Packed by ``steps``.
    steps : Packed
    heads : int
        A divisor of A.

    Returns
    -------
    (N, A)
        As in `attention`, with ``s_ij = <q_i, k_j> / sqrt(A / heads)``, -inf for j after i (Kang and McAuley,
        ICDM 2018, arXiv:1808.09781, eq. 2). Lists of one length are computed together: a list of L elements
        costs L^2, whatever the lengths of others.
    """
    scale = query.value.dtype.type((query.value.shape[1] / heads) ** -0.5)
    q, k, v = query.value * scale, key.value, value.value
    out = np.empty(v.shape, v.dtype)
    groups: list[tuple[Array, Backward]] = []
    for positions in _by_length(steps):
        out[positions], gradients = mixed(q[positions], k[positions], v[positions], heads, causal=True)
        groups.append((positions, gradients))

    def backward(gradient: Array) -> None:
        found = [np.empty(x.shape, x.dtype) for x in (q, k, v)]
        for positions, gradients in groups:
            for whole, one in zip(found, gradients(gradient[positions]), strict=True):
                whole[positions] = one
        found[0] *= scale
        for x, one in zip((query, key, value), found, strict=True):
            x.accumulate(one, owned=True)

    return tape.record(out, backward)


def _by_length(steps: Packed) -> list[Array]:
    """Return positions (G, L) of the G lists of each length L, longest first."""
    lengths = np.flatnonzero(np.diff(np.append(steps.sizes, 0))) + 1  # where lists end
    counts = np.append(steps.sizes, 0)
    return [
        np.arange(counts[length], counts[length - 1])[:, None] + steps.starts[:length]
        for length in lengths[::-1].tolist()
    ]


@layer
def prefix_attention(tape: Tape, keys: Var, queries: Var, values: Var, q: Var, pairs: Prefixes) -> Var:
    """Additive attention of every element to itself and earlier ones, without a softmax.

    Parameters
    ----------
    keys : (M, A)
        ``k``, of elements, or of graph nodes that several elements share.
    queries : (N, A)
        ``u``, of each element that attends.
    values : (M, D)
        ``v``.
    q : (A,)
    pairs : Prefixes
        Pairs of a query and a key.

    Returns
    -------
    (N, D)
        ``y_n = sum over j of <q, sigmoid(k_j + u_n)> v_j`` over the keys j paired with n. The cost is a row
        of A floats for each pair.

    Notes
    -----
    Bahdanau et al., ICLR 2015, without the softmax: NARM eq. 7 and 8, STAMP eq. 7, SR-GNN eq. 6.
    """
    keyed = Occurrences(None, pairs.items)
    gates = sigmoid_of(keys.value[pairs.items] + queries.value[pairs.owners])
    alpha = gates @ q.value
    weighed = alpha[:, None] * values.value[pairs.items]
    value = np.add.reduceat(weighed, pairs.starts[:-1], axis=0)

    def backward(gradient: Array) -> None:
        onward = gradient[pairs.owners]
        d_alpha = np.einsum("pd,pd->p", onward, values.value[pairs.items])
        values.accumulate(keyed.sum(alpha[:, None] * onward, values.value.shape), owned=True)
        q.accumulate(d_alpha @ gates, owned=True)
        d_gates = gates * (1 - gates)
        d_gates *= d_alpha[:, None] * q.value
        keys.accumulate(keyed.sum(d_gates, keys.value.shape), owned=True)
        queries.accumulate(np.add.reduceat(d_gates, pairs.starts[:-1], axis=0), owned=True)

    return tape.record(value, backward)
