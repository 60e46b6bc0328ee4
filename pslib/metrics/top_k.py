"""Top-k search: exact in chunks, so that memory is bounded by one chunk of scores, or approximate by faiss.

faiss is an optional dependency, imported when an index is made; ``pip install faiss-cpu`` installs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError
from pslib.process.blas import cores_given

CHUNK = 1 << 24
"""Scores per chunk: 64 MiB of float32."""
ROWS = 1024
"""Queries per chunk: enough for an efficient matrix product."""

NEIGHBOURS = 32
"""Edges per vector of the graph, M of Malkov and Yashunin; faiss's own default."""
BREADTH_BUILD, BREADTH_SEARCH = 200, 128
"""Candidates kept while a vector is added, and during a search (at least k)."""


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


class NearestIndex:
    """Graph index of vectors by inner product (HNSW: Malkov and Yashunin, arXiv:1603.09320).

    Parameters
    ----------
    vectors : (V, D)

    Raises
    ------
    ConfigurationError
        If faiss is not installed.
    """

    def __init__(self, vectors: NDArray[Any]) -> None:
        try:
            import faiss
        except ImportError as error:
            raise ConfigurationError(
                "approximate search needs faiss, which is not installed: pip install faiss-cpu brings "
                "it, or search exactly"
            ) from error
        faiss.omp_set_num_threads(cores_given())
        self._index = faiss.IndexHNSWFlat(vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = BREADTH_BUILD
        self._index.add(np.ascontiguousarray(vectors, np.float32))

    def search(self, queries: NDArray[Any], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k vectors with approximately the largest inner products with each query.

        Parameters
        ----------
        queries : (B, D)
        k : int

        Returns
        -------
        (B, min(k, V)) int64
            Rows of the vectors, the best first; -1 where fewer were found.
        (B, min(k, V)) float32
            Their products; -inf there.
        """
        k = min(k, int(self._index.ntotal))
        self._index.hnsw.efSearch = max(BREADTH_SEARCH, k)
        products, places = self._index.search(np.ascontiguousarray(queries, np.float32), k)
        return places.astype(np.int64), np.where(places < 0, -np.inf, products).astype(np.float32)
