"""Arrow columns become keys and numbers: the same value gives the same key in any type that can hold it."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cython_ext.common.hashing import hash_ints, hash_strings, null_key
from pslib.data.columns import float32_of, keys_of, lists_of, numbers_of, plain_batch, validity_of

SALT = 42
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
Slicer = Callable[[pa.Array], pa.Array]


def key_of(value: object) -> int:
    if value is None:
        return null_key(SALT)
    if isinstance(value, int):
        bits = np.array([value & (1 << 64) - 1], np.uint64).view(np.int64)
        return int(hash_ints(bits, SALT)[0])
    text = value.encode() if isinstance(value, str) else value
    assert isinstance(text, bytes)
    return int(hash_strings(np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64), SALT)[0])


def sliced(array: pa.Array) -> pa.Array:
    """The same values at offset 3 of a longer array."""
    padding = pa.nulls(3, array.type)
    return pa.concat_arrays([padding, array, padding]).slice(3, len(array))


SLICERS = [pytest.param(lambda array: array, id="whole"), pytest.param(sliced, id="slice")]


@pytest.mark.parametrize("slicer", SLICERS)
@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_an_integer_has_one_key_in_every_width(kind: pa.DataType, slicer: Slicer) -> None:
    values = [0, 5, None, 127, 1]
    array = slicer(pa.array(values, kind))
    assert keys_of(array, SALT).tolist() == [key_of(value) for value in values]
    coded = slicer(pa.array(values, kind).dictionary_encode())
    assert keys_of(coded, SALT).tolist() == [key_of(value) for value in values]


def test_integers_at_the_ends_of_their_ranges_keep_their_bits() -> None:
    assert keys_of(pa.array([-1, -(1 << 63)], pa.int64()), SALT).tolist() == [key_of(-1), key_of(-(1 << 63))]
    assert keys_of(pa.array([-1], pa.int8()), SALT).tolist() == [key_of(-1)]
    assert keys_of(pa.array([(1 << 64) - 1], pa.uint64()), SALT).tolist() == [key_of((1 << 64) - 1)]
    assert keys_of(pa.array([(1 << 32) - 1], pa.uint32()), SALT).tolist() == [key_of((1 << 32) - 1)]


@pytest.mark.parametrize("slicer", SLICERS)
def test_a_boolean_is_zero_or_one(slicer: Slicer) -> None:
    array = slicer(pa.array([True, None, False, True] * 5))
    assert keys_of(array, SALT).tolist() == [key_of(1), key_of(None), key_of(0), key_of(1)] * 5
    assert numbers_of(array)[0] == 1


@pytest.mark.parametrize("slicer", SLICERS)
@pytest.mark.parametrize("kind", [*TEXTS, *BYTES], ids=str)
def test_a_string_has_one_key_in_every_type(kind: pa.DataType, slicer: Slicer) -> None:
    values = ["", "a", None, "a string of more than twelve bytes", "ä", "a"]
    encoded = [v.encode() if v is not None and kind in BYTES else v for v in values]
    array = pa.array(encoded, kind)
    expected = [key_of(value) for value in values]
    if kind in (pa.string_view(), pa.binary_view()):  # Arrow can't join views: take a slice
        array = pa.array([encoded[1], *encoded], kind).slice(1) if slicer is sliced else array
        assert keys_of(array, SALT).tolist() == expected
        return
    assert keys_of(slicer(array), SALT).tolist() == expected
    assert keys_of(slicer(array.dictionary_encode()), SALT).tolist() == expected


def test_bytes_of_fixed_size_are_bytes() -> None:
    assert keys_of(pa.array([b"ab", None], pa.binary(2)), SALT).tolist() == [key_of(b"ab"), key_of(None)]


@pytest.mark.parametrize("width", [pa.int8(), pa.uint16(), pa.int32(), pa.int64()], ids=str)
def test_a_null_among_dictionary_values_is_null(width: pa.DataType) -> None:
    indices = pa.array([0, 1, None, 2, 1], width)
    coded = pa.DictionaryArray.from_arrays(indices, pa.array(["a", None, "b"]))
    assert keys_of(coded, SALT).tolist() == [key_of(v) for v in ("a", None, None, "b", None)]
    assert keys_of(coded.slice(2), SALT).tolist() == [key_of(v) for v in (None, "b", None)]


def test_a_large_dictionary_behind_narrow_indices_fits() -> None:
    coded = pa.DictionaryArray.from_arrays(
        pa.array([127, None], pa.int8()), pa.array([str(i) for i in range(300)])
    )
    assert keys_of(coded, SALT).tolist() == [key_of("127"), key_of(None)]


def test_all_null_and_empty_columns_give_keys() -> None:
    assert keys_of(pa.nulls(2), SALT).tolist() == [key_of(None)] * 2
    assert keys_of(pa.nulls(2, pa.float64()), SALT).tolist() == [key_of(None)] * 2, (
        "of a number that is a key too"
    )
    for kind in (*INTEGERS, *TEXTS, *BYTES, pa.bool_(), pa.null(), pa.dictionary(pa.int32(), pa.string())):
        assert keys_of(pa.array([], kind), SALT).shape == (0,)
    for kind in (pa.int64(), pa.string(), pa.dictionary(pa.int8(), pa.string())):
        assert keys_of(pa.nulls(3, kind), SALT).tolist() == [key_of(None)] * 3


LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]


@pytest.mark.parametrize("slicer", SLICERS)
@pytest.mark.parametrize("make", LISTS)
@pytest.mark.parametrize("element", [pa.int32(), pa.string()], ids=str)
def test_lists_keep_null_elements_and_lose_null_lists(
    element: pa.DataType, make: Callable[[pa.DataType], pa.DataType], slicer: Slicer
) -> None:
    one, two = ("a", "b") if element == pa.string() else (1, 2)
    values = [[one, None], None, [], [two, two, one]]
    array = pa.array(values, make(element))
    if make in (pa.list_view, pa.large_list_view):
        array = pa.array([[two], *values], make(element)).slice(1) if slicer is sliced else array
    else:
        array = slicer(array)
    keys, lengths = lists_of(array, SALT)
    assert lengths.tolist() == [2, 0, 0, 3]
    assert keys.tolist() == [key_of(v) for v in (one, None, two, two, one)]


@pytest.mark.parametrize("slicer", SLICERS)
def test_lists_of_fixed_size_may_be_null(slicer: Slicer) -> None:
    array = slicer(pa.array([[1, 2], None, [None, 3]], pa.list_(pa.int64(), 2)))
    keys, lengths = lists_of(array, SALT)
    assert lengths.tolist() == [2, 0, 2]
    assert keys.tolist() == [key_of(v) for v in (1, 2, None, 3)]


def test_values_hidden_behind_a_null_list_are_not_read() -> None:
    array = pa.ListArray.from_arrays(
        pa.array([0, 2, 4]), pa.array([1, 2, 3, 4]), mask=pa.array([True, False])
    )
    keys, lengths = lists_of(array, SALT)
    assert lengths.tolist() == [0, 2]
    assert keys.tolist() == [key_of(3), key_of(4)]


def test_a_column_of_nulls_is_a_column_of_empty_lists() -> None:
    keys, lengths = lists_of(pa.nulls(3), SALT)
    assert keys.shape == (0,)
    assert lengths.tolist() == [0, 0, 0]


def test_lists_of_dictionaries_give_the_keys_of_their_values() -> None:
    coded = pa.array(["x", "y", "x"]).dictionary_encode()
    keys, lengths = lists_of(pa.ListArray.from_arrays(pa.array([0, 1, 3]), coded), SALT)
    assert lengths.tolist() == [1, 2]
    assert keys.tolist() == [key_of(v) for v in ("x", "y", "x")]


@given(st.lists(st.none() | st.integers(-(1 << 31), (1 << 31) - 1)), st.integers(0, 9), st.integers(0, 9))
def test_any_slice_gives_the_keys_of_its_values(values: list[int | None], start: int, size: int) -> None:
    array = pa.array(values, pa.int32()).slice(start, size)
    assert keys_of(array, SALT).tolist() == [key_of(value) for value in values[start : start + size]]
    valid = validity_of(array)
    flags = [value is not None for value in values[start : start + size]]
    assert (valid is None and all(flags)) or (valid is not None and valid.astype(bool).tolist() == flags)


@pytest.mark.parametrize("kind", [*INTEGERS, pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_numbers_are_read_in_their_own_type(kind: pa.DataType) -> None:
    array = sliced(pa.array(np.array([1, 2, 3], kind.to_pandas_dtype())))
    assert numbers_of(array).tolist() == [1, 2, 3]
    assert numbers_of(array.dictionary_encode()).tolist() == [1, 2, 3]
    assert numbers_of(array).dtype == np.dtype(kind.to_pandas_dtype())


UUIDS = [b"a" * 16, None, b"b" * 16, b"c" * 16]
STORED = {
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array(UUIDS, pa.binary(16))), UUIDS),
    "json": (
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None, "1", "2"])),
        ["{}", None, "1", "2"],
    ),
    "bool8": (
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0, 1], pa.int8())),
        [1, None, 0, 1],
    ),
    "run_end_encoded": (pc.run_end_encode(pa.array([1, 1, None, 2])), [1, 1, None, 2]),
    "string_view": (pa.array(["a", None, "", "b"], pa.string_view()), ["a", None, "", "b"]),
    "binary_view": (pa.array([b"a", None, b"", b"b"], pa.binary_view()), [b"a", None, b"", b"b"]),
}
IN_LISTS = {
    "none": lambda array: array,
    "list": lambda array: pa.ListArray.from_arrays([0, 3, 4], array),
    "large_list": lambda array: pa.LargeListArray.from_arrays([0, 3, 4], array),
    "fixed_size_list": lambda array: pa.FixedSizeListArray.from_arrays(array, 2),
    "list_view": lambda array: pa.ListViewArray.from_arrays([0, 3], [3, 1], array),
}


@pytest.mark.parametrize("around", IN_LISTS)
@pytest.mark.parametrize("name", STORED)
def test_extensions_and_views_are_read_by_what_they_store(name: str, around: str) -> None:
    array, values = STORED[name]
    plain = plain_batch(pa.record_batch({"x": IN_LISTS[around](array)})).column("x")
    keys = keys_of(plain, SALT) if around == "none" else lists_of(plain, SALT)[0]
    assert keys.tolist() == [key_of(value) for value in values]
    assert plain.drop_null().null_count == 0  # Arrow has no such kernel for views


def test_plain_columns_are_not_copied() -> None:
    batch = pa.record_batch({"x": pa.array([[1]]), "y": pa.array(["a"]).dictionary_encode()})
    assert plain_batch(batch) is batch


def test_a_signalling_nan_is_a_nan_without_a_warning() -> None:
    signalling = np.full(20, 0x7FF4000000000000, np.uint64).view(np.float64)
    assert np.isnan(float32_of(signalling)).all()
