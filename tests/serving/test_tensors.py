"""Tensors of the inference protocol as columns: they come back as sent, and wrong ones are named."""

from __future__ import annotations

import tracemalloc
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.errors import DataError
from pslib.serving.tensors import (
    NUMBERS,
    Tensor,
    table_of_tensors,
    tensor_of_bytes,
    tensor_of_json,
    texts_of,
)

shapes = st.one_of(st.tuples(st.integers(0, 6)), st.tuples(st.integers(0, 4), st.integers(0, 4)))
NO_LISTS: frozenset[str] = frozenset()


@given(st.sampled_from(sorted(NUMBERS)), shapes, st.integers(0, 2**32 - 1))
def test_numbers_in_bytes_and_in_json_are_the_same_column(datatype: str, shape: Any, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2, prod(shape)).astype(NUMBERS[datatype])
    head = {"name": "x", "datatype": datatype, "shape": list(shape)}
    packed = tensor_of_bytes(head, memoryview(values.tobytes()))
    plain = tensor_of_json(head | {"data": values.tolist()})
    nested = tensor_of_json(head | {"data": values.reshape(shape).tolist()})
    assert packed.values.equals(plain.values)
    assert plain.values.equals(nested.values)
    assert packed.shape == shape


def test_numbers_that_begin_anywhere_in_a_body_are_aligned() -> None:
    body = memoryview(b"x" + np.arange(3, dtype=np.int64).tobytes())
    tensor = tensor_of_bytes({"name": "x", "datatype": "INT64", "shape": [3]}, body[1:])
    assert tensor.values.buffers()[1].address % 8 == 0
    assert tensor.values.to_pylist() == [0, 1, 2]


@given(st.lists(st.text(max_size=9), max_size=6))
def test_texts_in_bytes_and_in_json_are_the_same_column(texts: list[str]) -> None:
    head = {"name": "x", "datatype": "BYTES", "shape": [len(texts)]}
    packed = tensor_of_bytes(head, memoryview(texts_of(texts)))
    assert packed.values.to_pylist() == texts
    assert tensor_of_json(head | {"data": texts}).values.equals(packed.values)


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5))
def test_lists_are_their_elements_and_their_lengths(lists: list[list[int]]) -> None:
    flat = [value for one in lists for value in one]
    tensors = [
        Tensor("x", (len(flat),), pa.array(flat, pa.int64())),
        Tensor("x.lengths", (len(lists),), pa.array([len(one) for one in lists], pa.int32())),
    ]
    assert table_of_tensors(tensors, frozenset({"x"}), 9).column("x").to_pylist() == lists


def test_a_matrix_is_a_column_of_lists_of_one_length() -> None:
    tensor = tensor_of_json({"name": "x", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]})
    assert table_of_tensors([tensor], frozenset({"x"}), 9).column("x").to_pylist() == [[1, 2, 3], [4, 5, 6]]


def test_values_are_missing_where_json_has_null_or_valid_is_false() -> None:
    null = tensor_of_json({"name": "x", "datatype": "INT64", "shape": [2], "data": [None, 4]})
    masked = [
        tensor_of_json({"name": "y", "datatype": "BYTES", "shape": [2], "data": ["", "b"]}),
        tensor_of_json({"name": "y.valid", "datatype": "BOOL", "shape": [2], "data": [False, True]}),
    ]
    table = table_of_tensors([null, *masked], NO_LISTS, 9)
    assert table.to_pydict() == {"x": [None, 4], "y": [None, "b"]}


INT = {"name": "x", "datatype": "INT64", "shape": [2]}
TEXT = {"name": "x", "datatype": "BYTES", "shape": [1]}


@pytest.mark.parametrize(
    ("given", "data", "told"),
    [
        ({"datatype": "INT64", "shape": [1]}, b"", "expected a name"),
        (INT | {"datatype": "INT63"}, b"", "expected a datatype of BOOL, .* got 'INT63'"),
        (INT | {"shape": 2}, b"", r"expected a shape \[n\] or \[n, k\], got 2"),
        (INT | {"shape": [-1]}, b"", "expected a shape"),
        (INT | {"shape": [1, 1, 2]}, b"", "expected a shape"),
        (INT | {"shape": [True]}, b"", "expected a shape"),
        (INT | {"shape": [1 << 20, 1 << 20]}, b"", "at most 16777216 elements"),
        (INT, b"1234567", "'x': expected 16 bytes of 2 INT64, got 7"),
        (TEXT, b"\x05\x00\x00\x00abc", "'x': expected 1 texts, its bytes end in text 1"),
        (TEXT, b"\x01\x00\x00\x00ab", "'x': 1 bytes follow its 1 texts"),
        (TEXT, b"\x01\x00\x00\x00\xff", "'x': expected texts in UTF-8"),
    ],
)
def test_wrong_bytes_are_refused_by_the_name_of_their_input(given: Any, data: bytes, told: str) -> None:
    with pytest.raises(DataError, match=told):
        tensor_of_bytes(given, memoryview(data))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (INT | {"data": 5}, "'x': expected data as an array, got int"),
        (INT | {"data": [1]}, "'x': its shape has 2 elements, its data 1"),
        (INT | {"data": [1, "b"]}, "'x': expected values of INT64"),
        (INT | {"data": [1, 1 << 64]}, "'x': expected values of INT64"),
        (TEXT | {"data": [7]}, "'x': expected values of BYTES"),
    ],
)
def test_wrong_json_is_refused_by_the_name_of_its_input(given: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        tensor_of_json(given)


def one(name: str, shape: tuple[int, ...], values: list[Any]) -> Tensor:
    return Tensor(name, shape, pa.array(values))


def test_rows_are_counted_before_columns_are_made_of_them() -> None:
    """A request of some bytes has 2^24 empty lists, whose columns would take 128 MiB each."""
    empty = tensor_of_json({"name": "x", "datatype": "INT64", "shape": [1 << 24, 0], "data": []})
    tracemalloc.start()
    with pytest.raises(DataError, match="expected 1 to 9 rows, got 16777216"):
        table_of_tensors([empty], frozenset({"x"}), 9)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ([one("a", (1,), [1]), one("a", (1,), [1])], "expected each name once"),
        (
            [one("a", (1,), [1]), one("b", (2,), [1, 2])],
            "the same number of rows in all, got {'a': 1, 'b': 2}",
        ),
        ([one("a", (1, 2), [1, 2])], r"'a': expected a shape \[n\] or \[n, 1\]"),
        ([one("list", (2,), [1, 2])], "'list': expected a shape .*, or 'list.lengths' beside it"),
        ([one("list", (2,), [1, 2]), one("list.lengths", (1,), [3])], "add up to the 2 elements of 'list'"),
        ([one("list", (2,), [1, 2]), one("list.lengths", (2,), [3, -1])], "lengths of 0 or more"),
        ([one("list", (0,), []), one("list.lengths", (4,), [2**62] * 4)], "add up to the 0 elements"),
        ([one("list", (2,), [1, 2]), one("list.lengths", (5,), [2**62] * 4 + [2])], "lengths of 0 or more"),
        ([one("list", (0, 9), [])], "request: expected 1 to 9 rows, got 0"),
        ([one("list", (10, 0), [])], "request: expected 1 to 9 rows, got 10"),
        ([one("list", (1,), [1]), one("list.lengths", (1,), [1.0])], "expected whole numbers"),
        ([one("a", (1,), [1]), one("a.valid", (2,), [True, True])], "'a.valid': expected 1 values of BOOL"),
        ([one("a", (1,), [1]), one("a.valid", (1,), [1])], "'a.valid': expected 1 values of BOOL"),
    ],
)
def test_tensors_that_do_not_go_together_are_refused(tensors: list[Tensor], told: str) -> None:
    with pytest.raises(DataError, match=told):
        table_of_tensors(tensors, frozenset({"list"}), 9)
