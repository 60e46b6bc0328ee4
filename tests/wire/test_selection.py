"""Keys picked out of a request and rows on their way, each kernel beside its NumPy definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from cython_ext.wire.selection import (
    first_of_others,
    gather_rows,
    group_by_owner,
    partition_set,
    scatter_rows,
)
from pslib.table.partition_map import mask_of_units

Keys = NDArray[np.uint64]
key_lists = st.lists(
    st.one_of(st.sampled_from([0, 1, (1 << 64) - 1]), st.integers(0, (1 << 64) - 1)), max_size=200
).map(lambda keys: np.array(keys, np.uint64))
randoms = st.integers(0, 2**32).map(np.random.default_rng)


@given(key_lists, st.integers(0, 6), st.sampled_from([1, 2, 5, 100]), randoms)
def test_keys_are_grouped_by_owner_in_their_order(
    keys: Keys, bits: int, owner_count: int, random: np.random.Generator
) -> None:
    owners = random.integers(0, owner_count, 1 << bits).astype(np.uint16)
    grouped = np.empty_like(keys)
    order, starts = group_by_owner(keys, bits, owners, owner_count, grouped)
    np.testing.assert_array_equal(group_by_owner(keys, bits, owners, owner_count)[0], order)
    owner_of_key = owners[partition_of(keys, bits)]
    np.testing.assert_array_equal(order, np.argsort(owner_of_key, kind="stable"))
    np.testing.assert_array_equal(grouped, keys[order])
    np.testing.assert_array_equal(np.diff(starts), np.bincount(owner_of_key, minlength=owner_count))
    assert starts[0] == 0


@given(key_lists, st.integers(0, 6), randoms)
def test_the_first_key_of_another_owner_is_found(keys: Keys, bits: int, random: np.random.Generator) -> None:
    owners = (random.random(1 << bits) < 0.2).astype(np.uint16)
    others = np.flatnonzero(owners[partition_of(keys, bits)])
    assert first_of_others(keys, bits, owners, 0) == (others[0] if others.size else keys.size)


@given(key_lists, st.integers(0, 6))
def test_the_partitions_of_keys_are_bits_of_one_integer(keys: Keys, bits: int) -> None:
    assert partition_set(keys, bits) == mask_of_units(np.unique(partition_of(keys, bits)))


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.int8])
@pytest.mark.parametrize("columns", [0, 1, 16, 17])
def test_rows_go_from_their_places_and_back(dtype: type, columns: int) -> None:
    random = np.random.default_rng(columns)
    rows = random.integers(0, 100, (50, columns)).astype(dtype)
    places = random.permutation(50)[:30].astype(np.int32)
    found = np.empty((30, columns), dtype)
    gather_rows(rows, places, found)
    np.testing.assert_array_equal(found, rows[places])
    out = rows.copy()
    scatter_rows(found[::-1].copy(), places, out)
    rows[places] = found[::-1]
    np.testing.assert_array_equal(out, rows)


def test_places_out_of_range_and_arrays_of_another_shape_are_refused() -> None:
    rows, out = np.zeros((4, 2), np.float32), np.zeros((1, 2), np.float32)
    for place in (-1, 4):
        places = np.array([place], np.int32)
        with pytest.raises(ValueError, match=r"expected 0\.\.3"):
            gather_rows(rows, places, out)
        with pytest.raises(ValueError, match=r"expected 0\.\.3"):
            scatter_rows(out, places, rows)
    places = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="gather_rows: out"):
        gather_rows(rows, places, np.zeros((1, 3), np.float32))
    with pytest.raises(ValueError, match="scatter_rows: rows"):
        scatter_rows(np.zeros((1, 2)), places, rows)
    with pytest.raises(ValueError, match="expected C-contiguous"):
        gather_rows(np.zeros((2, 4), np.float32).T, places, out)


def test_owners_that_do_not_fit_are_refused() -> None:
    keys = np.zeros(1, np.uint64)
    with pytest.raises(ValueError, match="one a partition, 4, got 2"):
        group_by_owner(keys, 2, np.zeros(2, np.uint16), 1)
    with pytest.raises(ValueError, match="one a partition, 4, got 2"):
        first_of_others(keys, 2, np.zeros(2, np.uint16), 0)
    with pytest.raises(ValueError, match="below owner_count 2, got 2"):
        group_by_owner(keys, 1, np.array([0, 2], np.uint16), 2)
    for count in (0, 65537):
        with pytest.raises(ValueError, match="owner_count"):
            group_by_owner(keys, 0, np.zeros(1, np.uint16), count)
    for bits in (-1, 21):
        with pytest.raises(ValueError, match=r"0\.\.20"):
            group_by_owner(keys, bits, np.zeros(1, np.uint16), 1)
        with pytest.raises(ValueError, match=r"0\.\.20"):
            partition_set(keys, bits)
    for room in (0, 2):
        with pytest.raises(ValueError, match=f"grouped: expected room for 1 keys, got {room}"):
            group_by_owner(keys, 0, np.zeros(1, np.uint16), 1, np.empty(room, np.uint64))
