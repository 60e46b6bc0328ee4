"""Arrow columns as NumPy arrays, read from their buffers without a Python object per value.

Every function takes one Arrow array (not chunked), with any offset, and honours its validity bitmap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from cython_ext.common.hashing import hash_ints, hash_strings, null_key

KeySource = tuple[NDArray[Any], NDArray[np.uint8] | None, int, int | None, NDArray[np.uint64] | None]
"""Values, bitmap, its first bit, salt (None: values are keys), and the keys that the values are indices of.
"""

_WIDE_OFFSETS = (types.is_large_string, types.is_large_binary)
_NARROW_OFFSETS = (types.is_string, types.is_binary)

_PLAIN = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
          pa.float16(), pa.float32(), pa.float64())  # fmt: skip
_DTYPES = {kind.id: np.dtype(kind.to_pandas_dtype()) for kind in _PLAIN}
"""Of types that NumPy has: Arrow takes longer to name one than NumPy to make the view."""


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of this type are lists: variable, large, fixed-size or view."""
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view,
             types.is_large_list_view)  # fmt: skip
    return any(test(kind) for test in tests)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Type in which values of an extension type (uuid, json ...) are stored; other types unchanged.

    An extension type is read by its storage, also in lists: which of them a file shows depends on the
    version of pyarrow. Of runs, and of a dictionary of other values than texts and bytes, the type of the
    values: only tables in memory have them, Parquet stores the values.
    """
    if types.is_run_end_encoded(kind) or (types.is_dictionary(kind) and not _is_text(kind.value_type)):
        return storage_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return storage_type(kind.storage_type)
    if is_list(kind) and (inner := storage_type(kind.value_type)) != kind.value_type:
        return pa.large_list(inner)
    return kind


def _is_text(kind: pa.DataType) -> bool:
    """Return whether values are texts or bytes."""
    return bool(kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())) or bool(
        types.is_string_view(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind)
    )


def _plain_type(kind: pa.DataType) -> pa.DataType:
    kind = storage_type(kind)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if is_list(kind) and (inner := _plain_type(kind.value_type)) != kind.value_type:
        return pa.large_list(inner)
    return kind


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace extension types by their storage, and string views, for which Arrow lacks kernels.

    All that reads values of a file reads them through here; other columns are unchanged and not copied.
    """
    kinds = [_plain_type(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    return pa.RecordBatch.from_arrays(
        [_plain(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)],
        batch.schema.names,
    )


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Array as its `_plain_type`; lists anew, as Arrow 26 casts views of lists to wrong offsets."""
    while isinstance(array, pa.ExtensionArray | pa.RunEndEncodedArray):
        array = array.storage if isinstance(array, pa.ExtensionArray) else pc.run_end_decode(array)
    if array.type == kind or not is_list(array.type):
        return array.cast(kind)
    elements, bounds = elements_of(array)
    offsets = pa.array(bounds.astype(np.int64) - int(bounds[0]))
    absent = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(offsets, _plain(elements, kind.value_type), mask=absent)


def _bits(buffer: pa.Buffer, offset: int, count: int) -> NDArray[np.uint8]:
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8, count=(offset % 8 + count + 7) // 8, offset=first)
    return np.unpackbits(packed, bitorder="little", count=offset % 8 + count)[offset % 8 :]


def validity_of(array: pa.Array) -> NDArray[np.uint8] | None:
    """(n,) uint8 with 0 where the value is null; None if there are no nulls."""
    if array.null_count == 0:
        return None
    if types.is_null(array.type):
        return np.zeros(len(array), np.uint8)
    return _bits(array.buffers()[0], array.offset, len(array))


def numbers_of(array: pa.Array) -> NDArray[np.generic]:
    """(n,) values of an integer, float or boolean array in their own dtype; nulls hold any number.

    A view into Arrow's buffer where that is possible (not for booleans and dictionaries).
    """
    kind = array.type
    if types.is_dictionary(kind):
        return numbers_of(array.cast(kind.value_type))
    if types.is_null(kind):
        return np.zeros(len(array), np.float32)
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array), np.float32)
    if types.is_boolean(kind):
        return _bits(buffer, array.offset, len(array))
    dtype = _DTYPES.get(kind.id) or np.dtype(kind.to_pandas_dtype())
    return np.frombuffer(buffer, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def float32_of(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as the model reads them: beyond float32 they are infinite, a signalling NaN is NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def keys_of(array: pa.Array, salt: int) -> NDArray[np.uint64]:
    """Keys of an array of integers, booleans, strings, bytes, or a dictionary of them.

    Parameters
    ----------
    array : pyarrow.Array
        Its type is accepted by `pslib.data.column_types.key_kind`.
    salt : int
        Salt of the vocabulary.

    Returns
    -------
    (n,) uint64
        Equal values have equal keys in all of these types: int8 or uint64, string or dictionary of large
        strings. Null has its own key.
    """
    kind = array.type
    if array.null_count == len(array):  # also of a dense column that is empty here, and is floats
        return np.full(len(array), null_key(salt), np.uint64)
    if types.is_dictionary(kind):
        return _dictionary_keys(array, salt)
    valid = validity_of(array)
    if types.is_integer(kind) or types.is_boolean(kind):
        return hash_ints(_as_int64(numbers_of(array)), salt, valid)
    if any(test(kind) for test in _NARROW_OFFSETS):
        return hash_strings(*_text(array, np.dtype(np.int32)), salt, valid)
    if any(test(kind) for test in _WIDE_OFFSETS):
        return hash_strings(*_text(array, np.dtype(np.int64)), salt, valid)
    return keys_of(plain_text(array), salt)


def plain_text(array: pa.Array) -> pa.Array:
    """Cast string views and fixed sizes to large strings or binaries; return other strings unchanged."""
    kind = array.type
    if types.is_string_view(kind):
        return pc.cast(array, pa.large_string())
    if types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pc.cast(array, pa.large_binary())
    return array


def _as_int64(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Integers as int64; unsigned 64-bit ones keep their bits."""
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64, copy=False)


def _text(array: pa.Array, dtype: np.dtype[np.generic]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Data and offsets of a string array; offsets are int32 or int64."""
    _, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int32)
    offsets = np.frombuffer(offset_buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data, offsets


def bitmap_of(array: pa.Array) -> tuple[NDArray[np.uint8] | None, int]:
    """Arrow's validity bitmap and the bit at which the array begins; None if there are no nulls."""
    buffer = array.buffers()[0]
    if array.null_count == 0 or buffer is None:
        return None, 0
    return np.frombuffer(buffer, np.uint8), array.offset


def key_source(array: pa.Array, salt: int) -> KeySource:
    """Column as input of `cython_ext.data.examples.fill_keys`: `keys_of`, deferred where possible.

    Parameters
    ----------
    array : pyarrow.Array
        As for `keys_of`.
    salt : int
        Salt of the vocabulary.
    """
    kind = array.type
    if types.is_dictionary(kind):
        indices = array.indices
        return (numbers_of(indices), *bitmap_of(indices), salt, keys_of(array.dictionary, salt))
    if (types.is_integer(kind) or types.is_boolean(kind)) and len(array):
        return (numbers_of(array), *bitmap_of(array), salt, None)
    return given_source(keys_of(array, salt))


def given_source(keys: NDArray[np.uint64]) -> KeySource:
    """Precomputed keys as input of `cython_ext.data.examples.fill_keys`."""
    return keys, None, 0, None, None


def _dictionary_keys(array: pa.DictionaryArray, salt: int) -> NDArray[np.uint64]:
    """Keys of a dictionary array; each dictionary value is hashed once."""
    indices = array.indices
    valid = validity_of(indices)
    keys = np.append(keys_of(array.dictionary, salt), np.uint64(null_key(salt)))
    places = numbers_of(indices).astype(np.int64)
    if valid is not None:
        places[valid == 0] = keys.size - 1  # the index of a null is arbitrary
    return keys[places]


def lists_of(array: pa.Array, salt: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Keys of all list elements, concatenated, and the length of each list.

    Parameters
    ----------
    array : pyarrow.Array
        Lists of types that `keys_of` takes, or all null.
    salt : int
        Salt of the vocabulary.

    Returns
    -------
    keys : (m,) uint64
        A null element has the null key.
    lengths : (n,) int64
        0 for a null list.
    """
    elements, bounds = elements_of(array)
    return keys_of(elements, salt), np.diff(bounds).astype(np.int64, copy=False)


def elements_of(array: pa.Array) -> tuple[pa.Array, NDArray[Any]]:
    """All list elements, concatenated, and the bounds of each list.

    Parameters
    ----------
    array : pyarrow.Array
        Lists of any kind, or all null.

    Returns
    -------
    elements : pyarrow.Array
    bounds : (n + 1,) int32 or int64
        List ``i`` goes from ``bounds[i] - bounds[0]`` to ``bounds[i + 1] - bounds[0]``; a null one is empty.
        A view into Arrow's buffer where that is possible.
    """
    if types.is_null(array.type):
        return array.slice(0, 0), np.zeros(len(array) + 1, np.int64)
    if (types.is_list(array.type) or types.is_large_list(array.type)) and len(array) and not array.null_count:
        dtype = np.dtype(np.int32 if types.is_list(array.type) else np.int64)
        bounds = np.frombuffer(array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize)
        return array.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0])), bounds
    lengths = numbers_of(pc.list_value_length(array)).astype(np.int64)
    valid = validity_of(array)
    if valid is not None:
        lengths[valid == 0] = 0
    return array.flatten(), np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
