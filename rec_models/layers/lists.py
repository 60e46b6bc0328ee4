"""Operations on ragged lists: the elements of all lists stand one after the other in a flat array."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cython_ext.model.row_places import pool_rows
from rec_models.engine.tape import Array, Tape, Var, layer

Offsets: TypeAlias = NDArray[np.int64]
"""(B + 1,): list ``b`` is elements ``offsets[b]`` to ``offsets[b + 1] - 1``."""


def repeated(x: Array, offsets: Offsets) -> Array:
    """Repeat the value of each list, (B, ...), for its elements, (N, ...)."""
    return np.repeat(x, np.diff(offsets), axis=0)


def summed(x: Array, offsets: Offsets) -> Array:
    """Sum elements (N, D) list by list, in order, to (B, D); zeros for an empty list."""
    return pool_rows(np.ascontiguousarray(x), np.arange(x.shape[0], dtype=np.int32), offsets, False)


@layer
def facing(tape: Tape, h: Var, t: Var, offsets: Offsets) -> Var:
    """Input of an activation unit: each element with the target of its list.

    Parameters
    ----------
    h : (N, D)
        Elements.
    t : (B, D)
        Target of each list.
    offsets : (B + 1,) int64

    Returns
    -------
    (N, 4 D)
        ``[h, t, h - t, h * t]``; backward ``dh = g_1 + g_3 + t g_4``, ``dt`` is the sum of
        ``g_2 - g_3 + h g_4`` over the elements of its list.

    Notes
    -----
    Zhou et al., Deep Interest Network, KDD 2018, arXiv:1706.06978, section 4.3: the unit reads both
    embeddings and their product; as in the authors' code, here their difference and element-wise product.
    """
    D = h.value.shape[1]
    of_list = repeated(t.value, offsets)
    value = np.concatenate([h.value, of_list, h.value - of_list, h.value * of_list], axis=1)

    def backward(gradient: Array) -> None:
        g_h, g_t, g_minus, g_times = (gradient[:, D * i : D * (i + 1)] for i in range(4))
        h.accumulate(g_h + g_minus + of_list * g_times, owned=True)
        t.accumulate(summed(g_t - g_minus + h.value * g_times, offsets), owned=True)

    return tape.record(value, backward)


@layer
def list_softmax(tape: Tape, scores: Var, offsets: Offsets) -> Var:
    """Softmax within each list.

    Parameters
    ----------
    scores : (N,)
        Scores of elements.
    offsets : (B + 1,) int64

    Returns
    -------
    (N,)
        ``a_j = exp(s_j) / sum of exp(s_i) over the list``; backward ``ds_j = a_j (da_j - <a, da>)``, the
        inner product over the list.
    """
    s = scores.value
    filled = offsets[:-1][np.diff(offsets) > 0]
    highest = np.maximum.reduceat(s, filled) if filled.size else s
    powers = np.exp(s - np.repeat(highest, np.diff(np.append(filled, s.size))) if filled.size else s)
    a = powers / repeated(summed(powers[:, None], offsets)[:, 0], offsets)

    def backward(gradient: Array) -> None:
        inner = summed((a * gradient)[:, None], offsets)[:, 0]
        scores.accumulate(a * (gradient - repeated(inner, offsets)), owned=True)

    return tape.record(a, backward)


@layer
def weighted_sum(tape: Tape, weights: Var, h: Var, offsets: Offsets) -> Var:
    """Weighted sum of the elements of each list.

    Parameters
    ----------
    weights : (N,)
    h : (N, D)
        Elements.
    offsets : (B + 1,) int64

    Returns
    -------
    (B, D)
        ``y_b = sum of a_j h_j over the elements of list b``, zeros for an empty one; backward
        ``da_j = <dy_b, h_j>``, ``dh_j = a_j dy_b``.
    """
    a = weights.value[:, None]

    def backward(gradient: Array) -> None:
        of_list = repeated(gradient, offsets)
        weights.accumulate(np.einsum("nd,nd->n", of_list, h.value), owned=True)
        h.accumulate(a * of_list, owned=True)

    return tape.record(summed(a * h.value, offsets), backward)


@layer
def list_max(tape: Tape, x: Var, offsets: Offsets) -> Var:
    """Max pooling over the elements of each list.

    Parameters
    ----------
    x : (N, D)
    offsets : (B + 1,) int64

    Returns
    -------
    (B, D)
        ``y_b = max over the elements n of list b of x_n``, zeros for an empty list. Backward: each float of
        ``dy_b`` goes to the first element with the maximum.
    """
    lists, dim = offsets.size - 1, x.value.shape[1]
    full = np.flatnonzero(np.diff(offsets))
    value = np.zeros((lists, dim), x.value.dtype)
    winners = np.empty((0, dim), np.int64)
    if full.size:
        starts = offsets[full]
        value[full] = np.maximum.reduceat(x.value, starts, axis=0)
        owners = np.repeat(np.arange(lists), np.diff(offsets))
        indices = np.arange(x.value.shape[0])[:, None]
        candidates = np.where(x.value == value[owners], indices, x.value.shape[0])
        winners = np.minimum.reduceat(candidates, starts, axis=0)

    def backward(gradient: Array) -> None:
        onward = np.zeros_like(x.value)
        onward[winners, np.arange(dim)] = gradient[full]
        x.accumulate(onward, owned=True)

    return tape.record(value, backward)


@layer
def windows(tape: Tape, x: Var, offsets: Offsets, size: int) -> Var:
    """Windows of a convolution: ``size`` elements around each one, zeros beyond the ends of its list.

    Parameters
    ----------
    x : (N, D)
        Elements.
    offsets : (B + 1,) int64
    size : int

    Returns
    -------
    (N, size * D)
        ``y_n = [x_{n - h}, ..., x_n, ..., x_{n - h + size - 1}]`` with ``h = (size - 1) // 2``. Backward:
        each element sums its gradients in all windows.
    """
    elements, dim = x.value.shape
    owners = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    first, last = offsets[owners], offsets[owners + 1]
    here = np.arange(elements)
    shifts = range(-((size - 1) // 2), size - (size - 1) // 2)
    inside = [np.flatnonzero((here + shift >= first) & (here + shift < last)) for shift in shifts]
    value = np.zeros((elements, size, dim), x.value.dtype)
    for column, (shift, some) in enumerate(zip(shifts, inside, strict=True)):
        value[some, column] = x.value[some + shift]

    def backward(gradient: Array) -> None:
        by_shift = gradient.reshape(elements, size, dim)
        onward = np.zeros_like(x.value)
        for column, (shift, some) in enumerate(zip(shifts, inside, strict=True)):
            onward[some + shift] += by_shift[some, column]
        x.accumulate(onward, owned=True)

    return tape.record(value.reshape(elements, size * dim), backward)
