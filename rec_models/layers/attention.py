"""Multi-head attention of the fields of an example to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from rec_models.tape import Array, Empty, Tape, Var

__all__ = ["Backward", "attention", "mixed"]

Backward: TypeAlias = Callable[[Array], tuple[Array, Array, Array]]
"""From the gradient of what was mixed to those of queries, keys and values."""

SHORT = 32
"""Rows of weights of so many places are worked on place by place: NumPy takes rows one at a time."""


def attention(tape: Tape, query: Var, key: Var, value: Var, heads: int) -> Var:
    """Mix the values of all fields, weighted by how well their keys fit the query of each.

    Parameters
    ----------
    query, key, value : (B, F, A)
    heads : int
        A divisor of A: so many slices of the vectors, each with weights of its own.

    Returns
    -------
    (B, F, A)
        In each head ``s_ij = <q_i, k_j>``, ``a_i = softmax(s_i)``, ``y_i = sum over j of a_ij v_j``; backward
        ``da_ij = <dy_i, v_j>``, ``dv_j = sum over i of a_ij dy_i``, ``ds_i = a_i * (da_i - <a_i, da_i>)``,
        ``dq_i = sum over j of ds_ij k_j``, ``dk_j = sum over i of ds_ij q_i``.

    Notes
    -----
    Song et al., AutoInt, CIKM 2019, arXiv:1810.11921, eq. 5 and 6; inner products are not scaled there.
    """
    found, gradients = mixed(query.value, key.value, value.value, heads, empty=tape.empty)

    def backward(gradient: Array) -> None:
        for x, one in zip((query, key, value), gradients(gradient), strict=True):
            x.accumulate(one, owned=True)

    return tape.record(found, backward)


def mixed(
    q: Array, k: Array, v: Array, heads: int, causal: bool = False, empty: Empty = np.empty
) -> tuple[Array, Backward]:
    """The equations of `attention` on arrays.

    Parameters
    ----------
    q, k, v : (B, F, A)
    heads : int
    causal : bool
        ``s_ij = -inf`` for j after i.
    empty : callable
        Gives arrays, see `Tape`.

    Returns
    -------
    (B, F, A), and what gives the gradients of ``q``, ``k`` and ``v``
    """
    B, F, A = q.shape

    def by_head(x: Array) -> Array:
        return x.reshape(B, F, heads, A // heads).transpose(0, 2, 1, 3)

    def product(left: Array, right: Array) -> Array:
        """By head, written where (B, F, A) has it."""
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
    """``operation.reduce(x, axis=3)``, in rows that are short place by place."""
    if x.shape[3] > SHORT:
        return np.asarray(operation.reduce(x, axis=3))
    found = x[..., 0].copy()
    for place in range(1, x.shape[3]):
        operation(found, x[..., place], out=found)
    return found


def _row_by_row(operation: np.ufunc, x: Array, others: Array) -> None:
    """``x = operation(x, others[..., None])`` in place, likewise."""
    if x.shape[3] > SHORT:
        operation(x, others[..., None], out=x)
        return
    for place in range(x.shape[3]):
        operation(x[..., place], others, out=x[..., place])
