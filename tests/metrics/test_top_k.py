"""Top-k search: the exact one, and what is asked of faiss, made of its answers, and how much faiss finds."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.errors import ConfigurationError
from pslib.metrics.top_k import BREADTH_BUILD, BREADTH_SEARCH, NEIGHBOURS, NearestIndex, best_of, top_k
from pslib.process.blas import cores_given

# --- exact --------------------------------------------------------------------------------------------------


@given(st.integers(0, 5), st.integers(1, 20), st.integers(1, 25), st.integers(1, 60), st.integers(0, 3))
def test_the_best_k_are_those_of_a_sorted_row_however_small_the_chunks(
    rows: int, items: int, k: int, chunk: int, levels: int
) -> None:
    """Few levels: many ties, of which the first count; level 0 is left out."""
    rng = np.random.default_rng(rows * 31 + items)
    scores = rng.integers(0, levels + 1, (rows, items)).astype(np.float32)
    scores[scores == 0] = -np.inf
    places, best = best_of(lambda cut: scores[:, cut], rows, items, k, chunk)
    for row, found, values in zip(scores, places, best, strict=True):
        expected = [i for i in np.argsort(-row, kind="stable")[:k].tolist() if row[i] > -np.inf]
        assert found.tolist() == expected + [-1] * (min(k, items) - len(expected))
        assert values[: len(expected)].tolist() == row[expected].tolist()
    assert places.shape == best.shape == (rows, min(k, items))


def test_products_are_never_all_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslib.metrics.top_k.ROWS", 4)
    rng = np.random.default_rng(0)
    queries, vectors = rng.normal(size=(10, 3)), rng.normal(size=(50, 3))
    largest = 0
    real = np.concatenate

    def counted(arrays: list[np.ndarray], *args: Any, **kwargs: Any) -> np.ndarray:
        nonlocal largest
        joined = real(arrays, *args, **kwargs)
        largest = max(largest, joined.size)
        return joined

    monkeypatch.setattr(np, "concatenate", counted)
    places, scores = top_k(queries, vectors, 3, chunk=40)
    assert largest <= 4 * (10 + 3)
    whole = queries @ vectors.T
    assert places.tolist() == np.argsort(-whole, axis=1, kind="stable")[:, :3].tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(whole, places, axis=1))


def test_arrays_that_do_not_fit_are_told() -> None:
    with pytest.raises(ValueError, match=r"got \(2, 3\), \(4, 2\) and 1"):
        top_k(np.zeros((2, 3)), np.zeros((4, 2)), 1)
    assert top_k(np.zeros((0, 3)), np.zeros((4, 3)), 2)[0].shape == (0, 2)


# --- approximate --------------------------------------------------------------------------------------------


LEAST = np.finfo(np.float32).min
"""The product that faiss tells beside place -1, where it has found fewer than it was asked for."""


class IndexHNSWFlat:
    """faiss's index of this name, but that it finds everything, or the best ``reach`` alone."""

    reach = 1 << 30

    def __init__(self, dim: int, neighbours: int, metric: int) -> None:
        assert (neighbours, metric) == (NEIGHBOURS, METRIC)
        self.hnsw = SimpleNamespace(efConstruction=40, efSearch=16)
        self._vectors = np.empty((0, dim), np.float32)
        self.breadth: list[tuple[int, int]] = []

    @property
    def ntotal(self) -> int:
        return len(self._vectors)

    def add(self, vectors: np.ndarray) -> None:
        assert self.hnsw.efConstruction == BREADTH_BUILD
        self._vectors = np.concatenate([self._vectors, _as_faiss_takes_it(vectors)])

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        self.breadth.append((self.hnsw.efSearch, k))
        found, products = top_k(_as_faiss_takes_it(queries), self._vectors, k)
        found[:, self.reach :], products[:, self.reach :] = -1, LEAST
        return products, found


METRIC = 0


def _as_faiss_takes_it(vectors: np.ndarray) -> np.ndarray:
    """All else it would copy first."""
    assert vectors.dtype == np.float32
    assert vectors.flags.c_contiguous
    return vectors


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of threads that faiss is told; with it a module of faiss's interface."""
    told: list[int] = []
    names = {
        "METRIC_INNER_PRODUCT": METRIC,
        "IndexHNSWFlat": IndexHNSWFlat,
        "omp_set_num_threads": told.append,
    }
    monkeypatch.setitem(sys.modules, "faiss", SimpleNamespace(**names))  # type: ignore[arg-type]
    return told


def drawn(count: int, dim: int = 5) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, dim))


@pytest.mark.parametrize(("count", "k"), [(40, 10), (7, 7), (3, 10), (1, 1)])
def test_places_and_products_are_those_of_the_exact_search(threads: list[int], count: int, k: int) -> None:
    vectors, queries = drawn(count), drawn(6)
    found, products = NearestIndex(vectors).search(queries, k)
    exact, scores = top_k(queries, vectors, k)
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_allclose(products, scores, rtol=1e-5, atol=1e-6)
    assert (found.dtype, products.dtype) == (np.int64, np.float32)
    assert found.shape == products.shape == (6, min(k, count))
    assert threads == [cores_given()]


def test_where_fewer_are_found_the_rest_is_no_place_with_no_product(
    threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IndexHNSWFlat, "reach", 3)
    found, products = NearestIndex(drawn(20)).search(drawn(4), 5)
    assert (found[:, 3:] == -1).all()
    assert np.isneginf(products[:, 3:]).all()
    assert (found[:, :3] >= 0).all()
    assert np.isfinite(products[:, :3]).all()


def test_at_least_as_many_are_looked_at_as_are_asked_for(threads: list[int]) -> None:
    index = NearestIndex(drawn(500))
    for k in (1, 400, 501):
        index.search(drawn(1), k)
    assert index._index.breadth == [(BREADTH_SEARCH, 1), (400, 400), (500, 500)]


def test_any_array_of_numbers_is_turned_into_what_faiss_takes(threads: list[int]) -> None:
    vectors, queries = np.asfortranarray(drawn(9)), drawn(4)[::-1]
    found, _ = NearestIndex(vectors).search(queries, 2)
    np.testing.assert_array_equal(found, top_k(queries, vectors, 2)[0])


def test_without_faiss_what_to_install_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigurationError, match=r"needs faiss, .*pip install faiss-cpu"):
        NearestIndex(drawn(3))


def test_faiss_finds_nearly_all_of_the_best() -> None:
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(3000, 16)), rng.normal(size=(50, 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    exact, _ = top_k(queries, vectors, 10)
    found, scores = NearestIndex(vectors).search(queries, 10)
    assert np.mean([np.isin(a, b).mean() for a, b in zip(exact, found, strict=True)]) >= 0.9
    np.testing.assert_allclose(scores[:, 0], (queries * vectors[found[:, 0]]).sum(1), rtol=1e-4)
    few, products = NearestIndex(vectors[:2]).search(queries, 10)
    assert few.shape == products.shape == (50, 2)
