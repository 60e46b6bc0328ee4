"""Lists of a window, part after part, beside the keys of all of its elements."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cython_ext.data.batch_keys import batch_keys
from pslib.data.columns import lists_of
from pslib.data.window import ListBuffer

SALT = 12_345
NO_KEYS = np.empty(0, np.uint64)


def part(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.list_(kind))


SMALL = part([[1, 2], [], [-(2**31), 2**31 - 1]], pa.int32())
PARTS = {
    "int32 that fit 2 bytes": part([[0, 65_535], [7]], pa.int32()),
    "int32 that do not": part([[65_536], [7]], pa.int32()),
    "int8 below 0": part([[-1], [7]], pa.int8()),
    "int64 that fit 4 bytes": part([[3], [-4, 5]], pa.int64()),
    "int64 that do not": part([[2**31], [1]], pa.int64()),
    "the smallest int64": part([[-(2**63)], [1]], pa.int64()),
    "small uint64": part([[7], []], pa.uint64()),
    "the largest uint64": part([[2**64 - 1], [1]], pa.uint64()),
    "uint8": part([[255], [0]], pa.uint8()),
    "booleans": part([[True], [False]], pa.bool_()),
    "a null element": part([[1, None], [2]], pa.int32()),
    "null lists": part([None, [2], None], pa.int32()),
    "strings": part([["a"], ["b", "a"]], pa.string()),
    "a dictionary": pa.ListArray.from_arrays([0, 1, 3], pa.array(["a", "b", "a"]).dictionary_encode()),
    "no value at all": pa.nulls(3),
    "only empty lists": part([[], []], pa.int64()),
    "a slice": SMALL.slice(1),
    "no row": SMALL.slice(0, 0),
}


def check(room: ListBuffer, parts: list[pa.Array]) -> None:
    """The room, given the parts, holds what `lists_of` makes of each, one after the other."""
    room.begin(sum(map(len, parts)))
    for one in parts:
        room.add(one)
    every = [lists_of(one, SALT) for one in parts]
    wanted = np.concatenate([keys for keys, _ in every])
    lengths = np.concatenate([lengths for _, lengths in every])
    rows = np.arange(lengths.size)
    found, inverse, (starts,) = batch_keys(np.empty((rows.size, 0), np.uint64), [room.lists()], rows, NO_KEYS)
    np.testing.assert_array_equal(found[inverse], wanted)
    np.testing.assert_array_equal(np.diff(starts), lengths)


@pytest.mark.parametrize("second", PARTS)
@pytest.mark.parametrize("first", PARTS)
def test_parts_of_any_two_types_follow_each_other(first: str, second: str) -> None:
    room = ListBuffer(SALT)
    check(room, [SMALL, PARTS[first], PARTS[second], SMALL])
    check(room, [PARTS[second], SMALL])  # a window later, in the same room


def test_integers_are_kept_in_4_bytes_while_they_fit() -> None:
    room = ListBuffer(SALT)
    room.begin(5)
    room.add(SMALL)
    room.add(PARTS["int64 that fit 4 bytes"])
    assert room.lists()[0].dtype == np.int32
    assert room.lists()[2] == SALT


def test_integers_are_kept_in_2_bytes_while_they_fit_in_each_window_anew() -> None:
    room = ListBuffer(SALT)
    for parts, kind in [
        (["int32 that fit 2 bytes", "uint8"], np.uint16),
        (["int32 that fit 2 bytes", "int32 that do not"], np.int32),
        (["int8 below 0", "uint8"], np.int32),
        (["small uint64", "only empty lists"], np.uint16),
    ]:
        room.begin(4)
        for name in parts:
            room.add(PARTS[name])
        assert room.lists()[0].dtype == kind
        assert room.lists()[2] == SALT


def test_from_the_first_other_value_on_they_are_keys() -> None:
    room = ListBuffer(SALT)
    room.begin(7)
    for name in ("int64 that fit 4 bytes", "a null element"):
        room.add(PARTS[name])
    room.add(SMALL)
    values, offsets, salt = room.lists()
    assert (values.dtype, salt) == (np.uint64, None)
    assert offsets.tolist() == [0, 1, 3, 5, 6, 8, 8, 10]


def test_lists_of_more_elements_than_4_bytes_count_get_wider_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslib.data.window._NARROW_MAX", 6)
    room = ListBuffer(SALT)
    check(room, [SMALL, SMALL, PARTS["a null element"]])
    assert room.lists()[1].dtype == np.int64
    check(room, [SMALL])
    assert room.lists()[1].dtype == np.int32


def test_large_lists_are_lists() -> None:
    large = pa.array([[1, 2], [], [3]], pa.large_list(pa.int32()))
    check(ListBuffer(SALT), [SMALL, large.slice(1), large])
