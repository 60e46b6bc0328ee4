"""Exact top-k in chunks; memory is bounded by one chunk of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_of", "top_k"]

CHUNK = 1 << 24
"""Scores per chunk: 64 MiB of float32."""
ROWS = 1024
"""Queries per chunk: enough for an efficient matrix product."""


def best_of(
    scores: Callable[[slice], NDArray[Any]], queries: int, items: int, k: int, chunk: int = CHUNK
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the best k items of each query.

    Parameters
    ----------
    scores : callable
        ``scores(cut)`` returns (queries, n) scores of the items of a slice; -inf for excluded ones.
    queries, items, k : int
    chunk : int
        Approximate number of scores per call.

    Returns
    -------
    (queries, min(k, items)) int64
        Items, best first; ties in item order. -1 if fewer than k are left.
    (queries, min(k, items))
        Their scores.
    """
    k = min(k, items)
    places = np.full((queries, k), -1, np.int64)
    best = np.full((queries, k), -np.inf)
    at_once = max(k, chunk // max(1, queries))
    for start in range(0, items, at_once):
        some = scores(slice(start, min(start + at_once, items)))
        if start == 0:
            best = best.astype(some.dtype)
        joined = np.concatenate([best, some], axis=1)
        numbers = np.broadcast_to(np.arange(start, start + some.shape[1]), some.shape)
        numbered = np.concatenate([places, numbers], axis=1)
        chosen = _largest(joined, k)
        best = np.take_along_axis(joined, chosen, axis=1)
        places = np.take_along_axis(numbered, chosen, axis=1)
    return np.where(np.isneginf(best), -1, places), best


def _largest(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    """(B, k) indices of the largest values of each row, largest first; ties in index order."""
    order = np.argpartition(-scores, k - 1, axis=1)[:, :k] if k < scores.shape[1] else None
    if order is None:
        return np.argsort(-scores, axis=1, kind="stable")
    smallest = np.take_along_axis(scores, order, axis=1).min(axis=1, keepdims=True)
    ties = (scores == smallest).sum(axis=1) > 1  # partition picks any of them
    rows = np.flatnonzero(ties)
    order[rows] = np.argsort(-scores[rows], axis=1, kind="stable")[:, :k]
    order.sort(axis=1)
    within = np.argsort(-np.take_along_axis(scores, order, axis=1), axis=1, kind="stable")
    return np.take_along_axis(order, within, axis=1)


def top_k(
    queries: NDArray[Any], vectors: NDArray[Any], k: int, chunk: int = CHUNK
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the k vectors with the largest inner products with each query.

    Parameters
    ----------
    queries : (B, D)
    vectors : (V, D)
    k : int
        At least 1.
    chunk : int
        Approximate number of products at once.

    Returns
    -------
    (B, min(k, V)) int64
        Rows of ``vectors``, best first; ties in row order.
    (B, min(k, V))
        Their products.

    Raises
    ------
    ValueError
        If the shapes do not match, or k is below 1.
    """
    if queries.ndim != 2 or vectors.ndim != 2 or queries.shape[1] != vectors.shape[1] or k < 1:
        raise ValueError(
            f"top_k: expected (B, D) queries, (V, D) vectors and k of at least 1, got {queries.shape}, "
            f"{vectors.shape} and {k}"
        )
    pieces = [
        best_of(lambda cut, q=some: q @ vectors[cut].T, len(some), len(vectors), k, chunk)  # type: ignore[misc]
        for some in (queries[i : i + ROWS] for i in range(0, len(queries), ROWS))
    ]
    if not pieces:
        return np.empty((0, min(k, len(vectors))), np.int64), np.empty((0, min(k, len(vectors))))
    return np.concatenate([one for one, _ in pieces]), np.concatenate([one for _, one in pieces])
