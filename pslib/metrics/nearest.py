"""Approximate nearest-neighbour search through faiss, for item sets too large to scan for every query.

faiss is an optional dependency, imported when an index is made; ``pip install faiss-cpu`` installs it.
`pslib.metrics.top_k` is the exact search.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.errors import ConfigurationError
from pslib.process.blas import cores_given

__all__ = ["NearestIndex"]

NEIGHBOURS = 32
"""Edges per vector of the graph, M of Malkov and Yashunin; faiss's own default."""
BREADTH_BUILD, BREADTH_SEARCH = 200, 128
"""Candidates kept while a vector is added, and during a search (at least k)."""


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
