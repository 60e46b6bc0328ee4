"""The order of an epoch: every example once, the same in every process, for ever."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.data.order import LEASE_ROWS_MAX, Order, default_lease_rows
from pslib.errors import ConfigurationError

row_counts = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any)
small = st.integers(1, 40)


def examples(order: Order, epoch: int) -> list[tuple[int, int]]:
    """(row group, row in it) of each example in the epoch's order, lease by lease."""
    found = []
    for index in range(order.leases(epoch)):
        lease = order.lease(epoch, index)
        rows = [
            (piece.row_group, row)
            for piece in order.windows(epoch)[lease.window]
            for row in range(piece.start, piece.stop)
        ]
        places = order.window_order(epoch, lease.window)
        found += [rows[place] for place in places[lease.start : lease.stop]]
    return found


def in_file_order(counts: list[int]) -> list[tuple[int, int]]:
    return [(group, row) for group, rows in enumerate(counts) for row in range(rows)]


@given(row_counts, small, small, st.integers(0, 3), st.integers(0, (1 << 64) - 1), st.booleans())
def test_every_example_comes_exactly_once_an_epoch(
    counts: list[int], lease_rows: int, window_rows: int, epoch: int, seed: int, shuffle: bool
) -> None:
    order = Order(seed, counts, lease_rows, window_rows, shuffle)
    assert sorted(examples(order, epoch)) == in_file_order(counts)


@given(row_counts, small, small)
def test_leases_and_windows_keep_to_their_limits(
    counts: list[int], lease_rows: int, window_rows: int
) -> None:
    order = Order(1, counts, lease_rows, window_rows)
    leases = [order.lease(0, index) for index in range(order.leases(0))]
    assert all(1 <= lease.rows <= lease_rows for lease in leases)
    assert all(1 <= sum(p.rows for p in pieces) <= window_rows for pieces in order.windows(0))
    assert all(piece.rows > 0 for pieces in order.windows(0) for piece in pieces)


@given(row_counts, small, small, st.integers(0, 3))
def test_without_shuffling_every_epoch_is_in_file_order(
    counts: list[int], lease_rows: int, window_rows: int, epoch: int
) -> None:
    order = Order(1, counts, lease_rows, window_rows, shuffle=False)
    assert examples(order, epoch) == in_file_order(counts)


def test_epochs_and_seeds_differ_in_groups_and_in_rows() -> None:
    counts = [40] * 25
    orders = [
        examples(Order(seed, counts, 64, 80), epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]
    for i, left in enumerate(orders):
        assert left != in_file_order(counts)
        for right in orders[:i]:
            same = sum(a == b for a, b in zip(left, right, strict=True))
            assert same < 10  # 1 of 1,000 on average
            assert [group for group, _ in left[:80]] != [group for group, _ in right[:80]]


def test_two_windows_of_one_epoch_are_shuffled_differently() -> None:
    order = Order(0, [50, 50], 50, 50)
    assert order.window_order(0, 0).tolist() != order.window_order(0, 1).tolist()


def test_a_shuffled_row_may_stand_anywhere() -> None:
    firsts = [Order(seed, [16], 16).window_order(0, 0)[0] for seed in range(800)]
    counts = np.bincount(firsts, minlength=16)
    assert counts.min() > 20
    assert counts.max() < 90  # 50 on average, standard deviation 7


def test_whole_row_groups_are_kept_whole_and_large_ones_cut_evenly() -> None:
    order = Order(0, [60, 100, 30], 50, window_rows=60, shuffle=False)
    sizes = [[(p.row_group, p.rows) for p in pieces] for pieces in order.windows(0)]
    assert sizes == [[(0, 60)], [(1, 50)], [(1, 50)], [(2, 30)]]


GOLDEN = "[(0, 18, 20), (0, 0, 9), (2, 0, 9), (1, 0, 8)] [4, 0, 6, 7, 2]"
SHOW = """
from pslib.data.order import Order
order = Order(7, [5, 17, 20, 3], lease_rows=9, window_rows=20)
leases = [order.lease(2, i) for i in (2, 0, 4, 3)]
print([(l.window, l.start, l.stop) for l in leases], order.window_order(2, 1)[:5].tolist())
"""


def test_another_process_finds_this_order_for_ever() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == GOLDEN


def test_a_lease_that_is_not_there_is_refused() -> None:
    order = Order(0, [10], 4)
    for index in (-1, 3):
        with pytest.raises(IndexError, match=rf"0\.\.2 in epoch 5, got {index}"):
            order.lease(5, index)


def test_all_wrong_numbers_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Order(-1, [0, 0], 0, 0)
    assert [problem.split()[1] for problem in caught.value.problems] == [
        "seed",
        "lease_rows",
        "window_rows",
        "expected",
    ]


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_a_default_lease_is_whole_batches_and_not_too_large(rows: int, batch_rows: int) -> None:
    lease = default_lease_rows(rows, batch_rows)
    assert lease % batch_rows == 0
    assert batch_rows <= lease <= max(LEASE_ROWS_MAX, batch_rows)


def test_a_default_lease_is_a_thirty_second_of_little_data() -> None:
    assert default_lease_rows(32 * 10 * 100, 100) == 1000
    assert default_lease_rows(100, 4096) == 4096
    assert default_lease_rows(1 << 40, 4096) == LEASE_ROWS_MAX
