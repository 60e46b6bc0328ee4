"""Distinct keys in order of first appearance, and their partitions, each beside its NumPy definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cython_ext.common.hashing import mix64, partition_of
from cython_ext.data.distinct import distinct, partitions_touched

Keys = NDArray[np.uint64]
few = st.integers(0, 9).map(lambda i: [0, 1, (1 << 64) - 1, 1 << 63, 5, 6, 7, 8, 9, 10][i])
key_lists = st.lists(st.one_of(few, st.integers(0, (1 << 64) - 1)), max_size=300).map(
    lambda keys: np.array(keys, np.uint64)
)


def distinct_by_definition(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    found = list(dict.fromkeys(keys.tolist()))
    place = {key: i for i, key in enumerate(found)}
    return np.array(found, np.uint64), np.array([place[key] for key in keys.tolist()], np.int32)


@given(key_lists)
def test_distinct_is_its_definition(keys: Keys) -> None:
    found, inverse = distinct(keys)
    expected, expected_inverse = distinct_by_definition(keys)
    assert found.dtype == np.uint64
    assert inverse.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(inverse, expected_inverse)


def test_a_large_batch_of_zipf_keys_comes_back() -> None:
    keys = mix64(np.random.default_rng(0).zipf(1.2, 106_496).astype(np.uint64))
    found, inverse = distinct(keys)
    np.testing.assert_array_equal(found[inverse], keys)
    np.testing.assert_array_equal(np.sort(found), np.unique(keys))
    first = np.full(found.size, keys.size)
    np.minimum.at(first, inverse, np.arange(keys.size))
    assert (np.diff(first) > 0).all()


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 128, 1000])
def test_one_repeated_key_is_one_key(n: int) -> None:
    found, inverse = distinct(np.full(n, 7, np.uint64))
    assert found.tolist() == [7]
    assert inverse.tolist() == [0] * n


def test_keys_that_all_start_in_the_same_cell_stay_apart() -> None:
    candidates = np.arange(1 << 20, dtype=np.uint64)
    same = candidates[(mix64(candidates) & np.uint64(1023)) == 1023][
        :500
    ]  # the last cell: probing wraps around
    assert same.size == 500
    keys = np.concatenate([same, same[::-1]])[: 2 * same.size]
    found, inverse = distinct(keys[:512])
    expected, expected_inverse = distinct_by_definition(keys[:512])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(inverse, expected_inverse)


@given(key_lists, st.integers(0, 20))
def test_partitions_touched_are_the_distinct_partitions(keys: Keys, bits: int) -> None:
    np.testing.assert_array_equal(partitions_touched(keys, bits), np.unique(partition_of(keys, bits)))


@pytest.mark.parametrize("bits", [-1, 21])
def test_partition_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=r"0\.\.20"):
        partitions_touched(np.zeros(1, np.uint64), bits)
