"""The order of shuffled rows, beside its definition: a sort of mixed numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.common.hashing import mix64
from cython_ext.data.shuffle import shuffled


def by_definition(base: int, n: int) -> np.ndarray:
    return np.argsort(mix64(np.arange(n, dtype=np.uint64) + np.uint64(base)))


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 5_000))
def test_places_come_in_the_order_of_their_mixed_numbers(base: int, n: int) -> None:
    order = shuffled(base, n)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(order, by_definition(base, n))


@pytest.mark.parametrize("n", [(1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3_000_000])
def test_so_do_those_of_a_whole_window_and_of_more(n: int) -> None:
    np.testing.assert_array_equal(shuffled(12_345, n), by_definition(12_345, n))


def test_places_whose_high_bits_are_equal_are_told_apart_by_the_others() -> None:
    """The place takes 22 bits; of 2^22 numbers two share the other 42 by chance."""
    n, base = 1 << 22, 7
    mixed = np.sort(mix64(np.arange(n, dtype=np.uint64) + np.uint64(base))) >> np.uint64(22)
    assert np.count_nonzero(mixed[1:] == mixed[:-1]) >= 2
    np.testing.assert_array_equal(shuffled(base, n), by_definition(base, n))


@pytest.mark.soak
def test_more_rows_than_the_kernel_takes_are_sorted_by_numpy() -> None:
    np.testing.assert_array_equal(shuffled(1, (1 << 23) + 5), by_definition(1, (1 << 23) + 5))


@pytest.mark.parametrize(("base", "n"), [(-1, 3), (1 << 64, 3), (0, -1), (0, (1 << 40) + 1), (0.5, 3)])
def test_numbers_out_of_range_are_refused(base: int, n: int) -> None:
    with pytest.raises(ValueError, match="expected a whole number in"):
        shuffled(base, n)
