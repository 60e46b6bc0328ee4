"""The best k of many, in chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.metrics.top_k import best_of, top_k


@given(st.integers(0, 5), st.integers(1, 20), st.integers(1, 25), st.integers(1, 60), st.integers(0, 3))
def test_the_best_k_are_those_of_a_sorted_row_however_small_the_chunks(rows, items, k, chunk, levels):
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


def test_products_are_never_all_there_at_once(monkeypatch):
    monkeypatch.setattr("pslib.metrics.top_k.ROWS", 4)
    rng = np.random.default_rng(0)
    queries, vectors = rng.normal(size=(10, 3)), rng.normal(size=(50, 3))
    largest = 0
    real = np.concatenate

    def counted(arrays, *args, **kwargs):
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


def test_arrays_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match=r"got \(2, 3\), \(4, 2\) and 1"):
        top_k(np.zeros((2, 3)), np.zeros((4, 2)), 1)
    assert top_k(np.zeros((0, 3)), np.zeros((4, 3)), 2)[0].shape == (0, 2)
