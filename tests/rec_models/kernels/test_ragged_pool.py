"""Scatter-add and pooling, each beside its NumPy definition and its finite difference."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cython_ext.model.row_places import pool_rows, pool_rows_gradient, scatter_add_rows

Places = NDArray[np.int32]
Offsets = NDArray[np.int64]


@st.composite
def ragged(draw: Callable[..., object]) -> tuple[int, Places, Offsets, int, type, int]:
    """Rows, places in them, offsets of lists, width, dtype and seed."""
    rows = draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(0, 5), max_size=8))
    offsets = np.cumsum([0, *lengths], dtype=np.int64)  # type: ignore[misc]
    total = int(offsets[-1])
    places = np.array(draw(st.lists(st.integers(0, rows - 1), min_size=total, max_size=total)), np.int32)  # type: ignore[operator]
    width = draw(st.integers(0, 20))
    return (
        rows,
        places,
        offsets,
        width,
        draw(st.sampled_from([np.float32, np.float64])),
        draw(st.integers(0, 99)),
    )  # type: ignore[return-value]


def pooled_by_definition(rows: NDArray, places: Places, offsets: Offsets, mean: bool) -> NDArray:
    pooled = np.zeros((offsets.size - 1, rows.shape[1]), rows.dtype)
    np.add.at(pooled, np.repeat(np.arange(offsets.size - 1), np.diff(offsets)), rows[places])
    return pooled / np.maximum(1, np.diff(offsets))[:, None].astype(rows.dtype) if mean else pooled


def pool_gradient_by_definition(
    gradients: NDArray, places: Places, offsets: Offsets, rows: int, mean: bool
) -> NDArray:
    lengths = np.diff(offsets)
    share = gradients / np.maximum(1, lengths)[:, None].astype(gradients.dtype) if mean else gradients
    summed = np.zeros((rows, gradients.shape[1]), gradients.dtype)
    np.add.at(summed, places, np.repeat(share, lengths, axis=0))
    return summed


def same_bits(left: NDArray, right: NDArray) -> None:
    assert left.dtype == right.dtype
    np.testing.assert_array_equal(left, right)


@given(ragged())
def test_scatter_add_sums_in_order_of_appearance(case: tuple) -> None:
    rows, places, _, width, dtype, seed = case
    gradients = np.random.default_rng(seed).normal(size=(places.size, width)).astype(dtype)
    expected = np.zeros((rows, width), dtype)
    np.add.at(expected, places, gradients)
    same_bits(scatter_add_rows(gradients, places, rows), expected)


@pytest.mark.parametrize("mean", [False, True])
@given(case=ragged())
def test_pooling_is_its_definition(mean: bool, case: tuple) -> None:
    rows, places, offsets, width, dtype, seed = case
    values = np.random.default_rng(seed).normal(size=(rows, width)).astype(dtype)
    same_bits(pool_rows(values, places, offsets, mean), pooled_by_definition(values, places, offsets, mean))


@pytest.mark.parametrize("mean", [False, True])
@given(case=ragged())
def test_the_gradient_of_pooling_is_its_definition(mean: bool, case: tuple) -> None:
    rows, places, offsets, width, dtype, seed = case
    gradients = np.random.default_rng(seed).normal(size=(offsets.size - 1, width)).astype(dtype)
    same_bits(
        pool_rows_gradient(gradients, places, offsets, rows, mean),
        pool_gradient_by_definition(gradients, places, offsets, rows, mean),
    )


@pytest.mark.parametrize("mean", [False, True])
def test_the_gradient_of_pooling_agrees_with_finite_differences(mean: bool) -> None:
    random = np.random.default_rng(0)
    places, offsets = np.array([2, 0, 2, 1], np.int32), np.array([0, 3, 3, 4], np.int64)
    rows, upstream = random.normal(size=(3, 2)), random.normal(size=(3, 2))
    gradient = pool_rows_gradient(upstream, places, offsets, 3, mean)
    for at in np.ndindex(3, 2):
        up, down = rows.copy(), rows.copy()
        up[at] += 1e-6
        down[at] -= 1e-6
        change = pool_rows(up, places, offsets, mean) - pool_rows(down, places, offsets, mean)
        assert gradient[at] == pytest.approx((change * upstream).sum() / 2e-6, rel=1e-6)


def test_an_empty_list_gives_zeros_and_no_gradient() -> None:
    nothing, offsets = np.empty(0, np.int32), np.zeros(3, np.int64)
    assert pool_rows(np.ones((1, 2), np.float32), nothing, offsets, True).tolist() == [[0, 0], [0, 0]]
    assert pool_rows_gradient(np.ones((2, 2), np.float32), nothing, offsets, 1, True).tolist() == [[0, 0]]


@pytest.mark.parametrize("place", [-1, 3])
def test_a_place_beyond_the_rows_is_refused(place: int) -> None:
    places, offsets = np.array([0, place], np.int32), np.array([0, 2], np.int64)
    rows = np.ones((3, 2), np.float32)
    calls: list[Callable[[], object]] = [
        lambda: scatter_add_rows(rows[:2], places, 3),
        lambda: pool_rows(rows, places, offsets, False),
        lambda: pool_rows_gradient(rows[:1], places, offsets, 3, False),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"0\.\.2, got {place}"):
            call()


@pytest.mark.parametrize("offsets", [[], [1, 2], [0, 1], [0, 2, 1, 2], [0, 3, 2]])
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    places, bad = np.zeros(2, np.int32), np.array(offsets, np.int64)
    with pytest.raises(ValueError, match="offsets must rise from 0 to 2"):
        pool_rows(np.ones((1, 1)), places, bad, False)
    with pytest.raises(ValueError, match="offsets must rise from 0 to 2"):
        pool_rows_gradient(np.ones((max(0, bad.size - 1), 1)), places, bad, 1, False)


def test_another_number_of_gradients_is_refused() -> None:
    places = np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="one gradient a place: 2, got 1"):
        scatter_add_rows(np.ones((1, 1)), places, 1)
    with pytest.raises(ValueError, match="one gradient a list: 1, got 3"):
        pool_rows_gradient(np.ones((3, 1)), places, np.array([0, 2], np.int64), 1, False)
    with pytest.raises(ValueError, match="rows must be >= 0"):
        scatter_add_rows(np.ones((0, 1)), places[:0], -1)
