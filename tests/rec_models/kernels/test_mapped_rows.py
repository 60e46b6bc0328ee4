"""Rows in other memory are found by key: the index beside a dictionary."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.model.mapped_rows import MappedRows
from tests.support.definitions.table import unmix64

DIMS = (1, 3)


def colliding(number: int) -> int:
    """Return one of 32 keys, with two cells and five tags among them."""
    return int(unmix64(np.array([number // 16 << 63 | number << 32 | min(number % 8, 4)], np.uint64))[0])


def rows_of(numbers: list[int]) -> list[np.ndarray]:
    floats = np.array(numbers, np.float32)[:, None]
    return [
        np.ascontiguousarray(floats + np.arange(dim, dtype=np.float32) / 8 + part)
        for part, dim in enumerate(DIMS)
    ]


batches = st.lists(
    st.tuples(st.sampled_from(["add", "erase"]), st.lists(st.integers(0, 31), unique=True, max_size=12)),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(batches)
def test_what_was_added_last_and_not_erased_is_found(done: list[tuple[str, list[int]]]) -> None:
    index, expected = MappedRows(sum(len(keys) for _, keys in done), DIMS), {}
    for turn, (what, numbers) in enumerate(done):
        keys = np.array([colliding(number) for number in numbers], np.uint64)
        if what == "add":
            values = [turn * 100 + number for number in numbers]
            new = sum(key not in expected for key in keys.tolist())
            assert index.add(keys, rows_of(values)) == new
            expected |= dict(zip(keys.tolist(), values, strict=True))
        else:
            index.erase(keys)
            for key in keys.tolist():
                expected.pop(key, None)
    assert index.count == len(expected)
    assert sorted(index.keys().tolist()) == sorted(expected)
    asked = np.array([colliding(number) for number in range(32)], np.uint64)
    rows = np.full((32, 4), -1, np.float32)
    found = index.find(asked, rows)
    for place, key in enumerate(asked.tolist()):
        assert found[place] == (key in expected)
        wanted = np.concatenate(rows_of([expected[key]]), axis=1)[0] if key in expected else np.full(4, -1)
        assert rows[place].tolist() == wanted.tolist()


def test_threads_find_the_rows_of_many_arrays_at_once() -> None:
    rng = np.random.default_rng(0)
    keys, weights = rng.permutation(100_000).astype(np.uint64), rng.random((100_000, 20), np.float32)
    index = MappedRows(100_000, (20,))
    for start in range(0, 100_000, 999):
        index.add(keys[start : start + 999], [weights[start : start + 999]])
    failed: list[int] = []

    def ask(seed: int) -> None:
        some = np.random.default_rng(seed).integers(0, 100_000, 5_000)
        rows = np.empty((5_000, 20), np.float32)
        if not index.find(keys[some], rows).all() or not np.array_equal(rows, weights[some]):
            failed.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_arrays_stay_alive_and_are_not_copied() -> None:
    keys, weights = np.arange(3, dtype=np.uint64), np.zeros((3, 2), np.float32)
    index = MappedRows(3, (2,))
    index.add(keys, [weights])
    weights[1] = 7  # what a caller must not do shows that they are the same memory
    rows = np.empty((1, 2), np.float32)
    del keys, weights
    assert index.find(np.array([1], np.uint64), rows).all()
    assert rows.tolist() == [[7, 7]]


def add_too_many(index: MappedRows) -> None:
    index.add(np.arange(3, dtype=np.uint64), [np.zeros((3, 1), np.float32), np.zeros((3, 3), np.float32)])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (add_too_many, "add: expected at most 2 rows in all, got 3"),
        (lambda index: index.add(np.zeros(1, np.uint64), []), "add: expected 2 parts, got 0"),
        (lambda index: index.add(np.zeros(1, np.int64), []), "add: keys"),
        (lambda index: index.find(np.zeros(2, np.uint64), np.zeros((2, 3), np.float32)), "find: rows"),
        (lambda _index: MappedRows(-1, DIMS), "MappedRows: rows"),
        (lambda _index: MappedRows(1, ()), "expected 1 to 8 parts, got 0"),
    ],
)
def test_wrong_arguments_are_refused(wrong: object, told: str) -> None:
    with pytest.raises((ValueError, TypeError), match=told):
        wrong(MappedRows(2, DIMS))  # type: ignore[operator]
