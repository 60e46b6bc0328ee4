"""Tensors of the Open Inference Protocol v2 as Arrow arrays, and back; pure.

Source: Open Inference Protocol, REST, and its extension for binary tensor data
(https://github.com/kserve/open-inference-protocol). A column of data is a tensor of shape (n,) or (n, 1).
What tensors cannot say has a tensor beside it:

    NAME          (m,)    elements of a column of lists, all rows one after the other
    NAME.lengths  (n,)    of a column of lists, the number of elements of each row; without it a tensor (n, L)
                          is n lists of L elements
    NAME.valid    (n,)    BOOL, false where a value is missing; in JSON null is a missing value
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.errors import DataError

LENGTHS, VALID = ".lengths", ".valid"
ELEMENTS_MAX = 1 << 24
"""Elements of one tensor; a request is bounded by its bytes before."""

NUMBERS = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
BYTES = "BYTES"
ARROW = {name: pa.from_numpy_dtype(kind) for name, kind in NUMBERS.items()} | {BYTES: pa.string()}
DATATYPES = (*NUMBERS, BYTES)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a request.

    Attributes
    ----------
    name : str
    shape : tuple of int
    values : Arrow array
        Elements in row-major order.
    """

    name: str
    shape: tuple[int, ...]
    values: pa.Array


def tensor_of_json(given: Mapping[str, Any]) -> Tensor:
    """Return an input whose ``data`` is in the JSON of the request, flat or nested.

    Raises
    ------
    DataError
        If it is no tensor; names the input.
    """
    name, datatype, shape = _head(given)
    flat = _flat(given["data"], name, prod(shape))
    try:
        values = pa.array(flat, ARROW[datatype])
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DataError(f"input {name!r}: expected values of {datatype}: {error}") from error
    return Tensor(name, shape, values)


def tensor_of_bytes(given: Mapping[str, Any], data: memoryview) -> Tensor:
    """Return an input whose elements follow the JSON of the request, little-endian.

    Elements of BYTES are four bytes of length each, then the text in UTF-8.

    Raises
    ------
    DataError
        If it is no tensor; names the input.
    """
    name, datatype, shape = _head(given)
    count = prod(shape)
    if datatype == BYTES:
        return Tensor(name, shape, _texts(name, data, count))
    kind = np.dtype(NUMBERS[datatype])
    if data.nbytes != count * kind.itemsize:
        raise DataError(
            f"input {name!r}: expected {count * kind.itemsize} bytes of {count} {datatype}, got {data.nbytes}"
        )
    if datatype == "BOOL":  # bits in Arrow
        return Tensor(name, shape, pa.array(np.frombuffer(data, kind)))
    buffer = pa.py_buffer(data)
    if buffer.address % kind.itemsize:  # in a body they begin anywhere; kernels need them aligned
        buffer = pa.py_buffer(bytes(data))
    return Tensor(name, shape, pa.Array.from_buffers(ARROW[datatype], count, [None, buffer]))


def _head(given: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    """Return name, datatype and shape of an input."""
    name, datatype, shape = given.get("name"), given.get("datatype"), given.get("shape")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise DataError(f"input: expected a name of printable characters, got {name!r:.60}")
    if datatype not in DATATYPES:
        raise DataError(
            f"input {name!r}: expected a datatype of {', '.join(DATATYPES)}, got {datatype!r:.40}"
        )
    sizes = shape if isinstance(shape, list) else [None]
    if not all(type(size) is int and 0 <= size <= ELEMENTS_MAX for size in sizes) or len(sizes) > 2:
        raise DataError(f"input {name!r}: expected a shape [n] or [n, k], got {shape!r:.40}")
    if prod(sizes) > ELEMENTS_MAX:
        raise DataError(f"input {name!r}: expected at most {ELEMENTS_MAX} elements, got {prod(sizes)}")
    return name, datatype, tuple(sizes)


def _flat(data: Any, name: str, count: int) -> list[Any]:
    """Return data as a flat list of ``count`` elements; it may be nested as the shape is."""
    if not isinstance(data, list):
        raise DataError(f"input {name!r}: expected data as an array, got {type(data).__name__}")
    flat = data
    if any(isinstance(one, list) for one in data):
        flat = [value for row in data for value in (row if isinstance(row, list) else [row])]
    if len(flat) != count:
        raise DataError(f"input {name!r}: its shape has {count} elements, its data {len(flat)}")
    return flat


def _texts(name: str, data: memoryview, count: int) -> pa.Array:
    texts: list[bytes] = []
    at = 0
    for _ in range(count):
        if at + 4 > data.nbytes:
            raise DataError(f"input {name!r}: expected {count} texts, its bytes end in text {len(texts) + 1}")
        size = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if at + size > data.nbytes:
            raise DataError(f"input {name!r}: expected {count} texts, its bytes end in text {len(texts) + 1}")
        texts.append(bytes(data[at : at + size]))
        at += size
    if at != data.nbytes:
        raise DataError(f"input {name!r}: {data.nbytes - at} bytes follow its {count} texts")
    try:
        return pa.array(texts, pa.binary()).cast(pa.string())
    except pa.ArrowException as error:
        raise DataError(f"input {name!r}: expected texts in UTF-8") from error


def check_rows(rows: int, rows_max: int) -> None:
    """Raise `DataError` if a request has no row, or more than it may."""
    if not 1 <= rows <= rows_max:
        raise DataError(f"request: expected 1 to {rows_max} rows, got {rows}")


def table_of_tensors(tensors: Sequence[Tensor], lists: frozenset[str], rows_max: int) -> pa.Table:
    """Return the columns that tensors are.

    Parameters
    ----------
    tensors : sequence of Tensor
    lists : set of str
        Names of columns of lists.
    rows_max : int
        Rows that they may have: a few bytes can be millions of empty lists.

    Raises
    ------
    DataError
        If one is there twice, sizes do not fit, or there is no row or more than may be.
    """
    given = {tensor.name: tensor for tensor in tensors}
    if len(given) < len(tensors):
        raise DataError("inputs: expected each name once")
    names = [
        name for name in given if not (name.endswith((LENGTHS, VALID)) and name.rpartition(".")[0] in given)
    ]
    lengths = {name: given.get(name + LENGTHS) for name in names if name in lists}
    rows = {name: (lengths.get(name) or given[name]).shape[0] for name in names}
    if len(set(rows.values())) > 1:
        raise DataError(f"inputs: expected the same number of rows in all, got {rows!s:.200}")
    check_rows(next(iter(rows.values())), rows_max)
    columns = {}
    for name in names:
        column = _lists(given[name], lengths[name]) if name in lengths else _values(given[name])
        columns[name] = _with_nulls(column, given.get(name + VALID))
    return pa.table(columns)


def _values(tensor: Tensor) -> pa.Array:
    if len(tensor.shape) == 2 and tensor.shape[1] != 1:
        raise DataError(f"input {tensor.name!r}: expected a shape [n] or [n, 1], got {list(tensor.shape)}")
    return tensor.values


def _lists(tensor: Tensor, lengths: Tensor | None) -> pa.Array:
    if lengths is None:
        if len(tensor.shape) != 2:
            hint = f"or {tensor.name + LENGTHS!r} beside it"
            raise DataError(
                f"input {tensor.name!r}: expected a shape [n, k], {hint}, got {list(tensor.shape)}"
            )
        offsets = np.arange(tensor.shape[0] + 1, dtype=np.int64) * tensor.shape[1]
    else:
        sizes, most = _whole(lengths), len(tensor.values)
        fits = not sizes.size or (sizes.min() >= 0 and sizes.max() <= most)  # so that no sum overflows
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        if not fits or offsets[-1] != most:
            raise DataError(
                f"input {lengths.name!r}: expected lengths of 0 or more that add up to the "
                f"{most} elements of {tensor.name!r}"
            )
    return pa.LargeListArray.from_arrays(pa.array(offsets), tensor.values)


def _whole(tensor: Tensor) -> NDArray[np.int64]:
    if not pa.types.is_integer(tensor.values.type) or tensor.values.null_count:
        raise DataError(f"input {tensor.name!r}: expected whole numbers, none missing")
    found: NDArray[np.int64] = tensor.values.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _with_nulls(column: pa.Array, valid: Tensor | None) -> pa.Array:
    """Return a column whose values are missing where ``valid`` is false."""
    if valid is None:
        return column
    if (
        not pa.types.is_boolean(valid.values.type)
        or valid.values.null_count
        or len(valid.values) != len(column)
    ):
        raise DataError(f"input {valid.name!r}: expected {len(column)} values of BOOL")
    places = pa.array(np.arange(len(column)), mask=~valid.values.to_numpy(zero_copy_only=False))
    return column.take(places)


def bytes_of(values: NDArray[np.float32]) -> bytes:
    """Return predictions as the bytes of a tensor FP32, little-endian, row-major."""
    return np.ascontiguousarray(values, "<f4").tobytes()


def texts_of(texts: Sequence[str]) -> bytes:
    """Return texts as the bytes of a tensor BYTES."""
    packed = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(one)) + one for one in packed)
