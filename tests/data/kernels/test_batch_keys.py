"""Keys of one batch, beside their definition: a dict in order of first appearance."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cython_ext.common.hashing import hash_ints, mix64
from cython_ext.data.batch_keys import batch_keys, take_rows
from cython_ext.table.store import vector_levels

Keys = NDArray[np.uint64]
Lists = list[tuple[NDArray[Any], NDArray[np.int64], int | None]]
NONE = np.empty(0, np.uint64)
few = st.sampled_from([0, 1, (1 << 64) - 1, 1 << 63, 5, 64, 128, 1 << 32, 3 << 40, 7])
some_keys = st.lists(few, max_size=5).map(lambda keys: np.array(keys, np.uint64))


def lists_of(elements: list[list[int]]) -> tuple[Keys, NDArray[np.int64], None]:
    offsets = np.cumsum([0, *map(len, elements)]).astype(np.int64)
    return np.array([key for one in elements for key in one], np.uint64), offsets, None


def integers_of(elements: list[list[int]], salt: int) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
    """Return the elements reduced to int32, or to uint16 where the salt is odd."""
    values, offsets, _ = lists_of(elements)
    return values.astype(np.uint16 if salt % 2 else np.int32), offsets, salt


def by_definition(sparse: Keys, lists: Lists, rows: NDArray[np.int64], drawn: Keys) -> list[int]:
    """Return all keys in their order."""
    keys = [key for row in rows.tolist() for key in sparse[row].tolist()]
    for values, offsets, salt in lists:
        every = values if salt is None else hash_ints(values.astype(np.int64), salt)
        keys += [key for row in rows.tolist() for key in every[offsets[row] : offsets[row + 1]].tolist()]
    return keys + drawn.tolist()


def check(sparse: Keys, lists: Lists, rows: NDArray[np.int64], drawn: Keys) -> None:
    """By each instruction set, and with offsets of 8 and of 4 bytes."""
    keys = by_definition(sparse, lists, rows, drawn)
    narrow = [(values, offsets.astype(np.int32), salt) for values, offsets, salt in lists]
    for level, some in [(level, some) for level in vector_levels() for some in (lists, narrow)]:
        found, inverse, starts = batch_keys(sparse, some, rows, drawn, level)
        assert (found.dtype, inverse.dtype) == (np.uint64, np.int32)
        assert found.tolist() == list(dict.fromkeys(keys))
        assert found[inverse].tolist() == keys
        for (_, offsets, _), begins in zip(lists, starts, strict=True):
            assert begins.tolist() == [0, *np.cumsum(np.diff(offsets)[rows]).tolist()]


@given(st.data(), st.integers(1, 9), st.integers(0, 4), st.integers(0, 2), some_keys)
def test_keys_are_distinct_in_order_of_first_appearance(
    data: st.DataObject, count: int, fields: int, columns: int, drawn: Keys
) -> None:
    def matrix(row: st.SearchStrategy[int], width: int) -> list[list[int]]:
        return data.draw(
            st.lists(st.lists(row, min_size=width, max_size=width), min_size=count, max_size=count)
        )

    sparse = np.array(matrix(few, fields), np.uint64).reshape(count, fields)
    element_lists = st.lists(st.lists(few, max_size=12), min_size=count, max_size=count)
    salts = [data.draw(st.none() | st.integers(0, (1 << 64) - 1)) for _ in range(columns)]
    elements = [data.draw(element_lists) for _ in salts]
    lists: Lists = [
        lists_of(one) if salt is None else integers_of(one, salt)
        for one, salt in zip(elements, salts, strict=True)
    ]
    rows = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=30)), np.int64)
    check(sparse, lists, rows, drawn)


def test_a_large_batch_of_shuffled_rows_comes_back() -> None:
    rng = np.random.default_rng(0)
    sparse = mix64(rng.zipf(1.2, 26_000).astype(np.uint64)).reshape(1000, 26)
    lengths = rng.integers(0, 40, 1000)
    values = mix64(rng.zipf(1.2, int(lengths.sum())).astype(np.uint64))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    small = rng.integers(-(1 << 31), 1 << 31, values.size).astype(np.int32)
    check(sparse, [(values, offsets, None)], rng.permutation(1000)[:700], values[:50])
    check(sparse, [(small, offsets, 7), (values, offsets, None)], rng.permutation(1000)[:700], values[:50])
    tiny = small.astype(np.uint16)
    of_it = hash_ints(tiny.astype(np.int64), 7)  # a column of which one before and one after it has keys
    columns = [(of_it, offsets, None), (tiny, offsets, 7), (tiny % 99, offsets, 7), (small, offsets, 7)]
    check(sparse, columns, rng.permutation(1000)[:700], of_it[:50])
    check(sparse[:, :0], columns[1:], rng.permutation(1000)[:700], of_it[:50])
    check(sparse[:, :0], columns[1:2], rng.permutation(1000)[:3], of_it[:50])


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537])
def test_so_do_all_integers_of_two_bytes(count: int) -> None:
    """The last of them has the largest place that two bytes count to, or one that they do not."""
    values = np.random.default_rng(0).permutation(65_536).astype(np.uint16)
    there_and_back = np.concatenate([values, values[::-1]])[:count]
    offsets = np.array([0, count // 2, count])
    check(np.empty((2, 0), np.uint64), [(there_and_back, offsets, 7)], np.array([0, 1]), NONE)


def test_the_first_key_of_an_earlier_batch_is_unknown_to_a_later_one() -> None:
    """Batches use the same memory, and what an empty cell names is the first key of this one."""
    integers = np.arange(30_000).astype(np.uint16)
    later = [(integers, np.array([0, integers.size]), 7)]
    no_fields, row = np.empty((1, 0), np.uint64), np.array([0])
    for key in (0, 5, 1 << 63):
        first = np.array([[key]], np.uint64)
        check(no_fields, later, row, NONE)
        check(first, [], row, NONE)
        check(no_fields, later, row, first[0])


@pytest.mark.parametrize("step", [1 << 20, 1 << 48])
def test_keys_that_all_start_in_the_same_cell_stay_apart(step: int) -> None:
    """The worst keys for the table: their low bits are equal, and so large that probing wraps around."""
    keys = (np.arange(600, dtype=np.uint64) * np.uint64(step)) | np.uint64((1 << 20) - 1)
    check(keys.reshape(300, 2), [], np.arange(300), keys)


@pytest.mark.parametrize("distinct", [65_300, 65_535, 65_536, 70_000])
def test_keys_are_as_many_as_there_are(distinct: int) -> None:
    """Up to 65,535 of them are counted in two bytes; known ones are found before that and behind it."""
    keys = mix64(np.arange(distinct, dtype=np.uint64))
    rest = -distinct % 4
    sparse = np.concatenate([keys, keys[:rest], keys[::-1][:4000], keys[:4000]]).reshape(-1, 4)
    rows = np.arange(len(sparse))
    check(sparse, [], rows, keys[-300:])
    lists: Lists = [(keys, np.arange(distinct + 1), None)]
    check(np.empty((distinct, 0), np.uint64), lists, np.arange(distinct), keys[-300:])


def test_no_rows_and_no_fields_are_ordinary() -> None:
    check(np.empty((0, 0), np.uint64), [], np.empty(0, np.int64), NONE)
    check(np.empty((3, 0), np.uint64), [lists_of([[], [], []])], np.array([2, 0]), NONE)


SPARSE, ROW, TWO = np.zeros((2, 1), np.uint64), np.array([1]), np.array([0, 0, 0])
BAD: dict[str, tuple[object, Lists, object, object, str]] = {
    "a row too far": (SPARSE, [], np.array([0, 2]), NONE, r"rows: expected 0\.\.1, got 2 at place 1"),
    "a row below 0": (SPARSE, [], np.array([-1]), NONE, r"rows: expected 0\.\.1, got -1 at place 0"),
    "keys of another type": (SPARSE.astype(np.int64), [], ROW, NONE, "sparse: expected C-contiguous uint64"),
    "rows of another type": (SPARSE, [], ROW.astype(np.int32), NONE, "rows: expected C-contiguous int64"),
    "strided draws": (SPARSE, [], ROW, np.zeros(4, np.uint64)[::2], "drawn: expected C-contiguous uint64"),
    "fewer lists": (SPARSE, [lists_of([[3]])], ROW, NONE, r"lists 0: expected rows in 0\.\.0 .* got row 1"),
    "offsets that fall": (
        SPARSE,
        [(NONE, np.array([0, 1, 0]), None)],
        ROW,
        NONE,
        "lists 0: .* got row 1 at place 0",
    ),
    "offsets too far": (
        SPARSE,
        [(NONE, np.array([0, 0, 1]), None)],
        ROW,
        NONE,
        r"rise within 0\.\.0, got row 1",
    ),
    "no offsets at all": (
        np.zeros((2, 0), np.uint64),
        [(NONE, np.empty(0, np.int64), None)],
        np.array([1 << 40]),
        NONE,
        "lists 0: .* got row 1099511627776",
    ),
    "offsets below 0": (SPARSE, [(NONE, np.array([0, -1, 0]), None)], ROW, NONE, "lists 0: .* got row 1"),
    "strings for lists": (SPARSE, [(NONE, np.array(["a"]), None)], ROW, NONE, "lists 0: offsets: expected"),  # type: ignore[list-item]
    "keys with a salt": (SPARSE, [(NONE, TWO, 5)], ROW, NONE, "lists 0: values: expected C-contiguous int32"),
    "integers without one": (
        SPARSE,
        [(NONE.astype(np.int32), TWO, None)],
        ROW,
        NONE,
        "lists 0: values: expected C-contiguous uint64",
    ),
    "a salt below 0": (SPARSE, [(NONE.astype(np.int32), TWO, -1)], ROW, NONE, "lists 0: salt: expected"),
    "values that are not aligned": (
        SPARSE,
        [(np.zeros(9, np.uint8)[1:].view(np.uint64), TWO, None)],
        ROW,
        NONE,
        "lists 0: values: expected an aligned array",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused(case: str) -> None:
    sparse, lists, rows, drawn, said = BAD[case]
    with pytest.raises(ValueError, match=said):
        batch_keys(sparse, lists, rows, drawn)  # type: ignore[arg-type]


@given(st.sampled_from([(), (0,), (1,), (2,), (13,), (40,)]), st.integers(0, 300), st.integers(0, 99))
def test_rows_are_taken_as_numpy_takes_them(width: tuple[int, ...], count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.frombuffer(rng.bytes(4 * 50 * int(np.prod(width))), np.float32).reshape(50, *width)
    rows = rng.integers(0, 50, count)
    assert take_rows(matrix, rows).tobytes() == matrix[rows].tobytes()  # NaN and all
    assert take_rows(matrix, rows).shape == (count, *width)


@pytest.mark.parametrize(
    ("matrix", "rows", "said"),
    [
        (np.zeros((2, 1), np.float32), np.array([0, 2]), r"rows: expected 0\.\.1, got 2 at place 1"),
        (np.zeros((2, 0), np.float32), np.array([-1]), r"rows: expected 0\.\.1, got -1 at place 0"),
        (np.zeros(2), ROW, "matrix: expected C-contiguous float32"),
        (np.zeros((2, 2, 2), np.float32), ROW, "matrix: expected C-contiguous float32"),
        (np.zeros(2, np.float32), ROW.astype(np.int32), "rows: expected C-contiguous int64"),
    ],
)
def test_rows_that_are_not_there_are_refused(matrix: Any, rows: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        take_rows(matrix, rows)
