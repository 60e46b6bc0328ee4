"""Casts of columns to what their fields read: texts to lists, texts to numbers, keys to one kind.

Parquet and tables in memory have types, so nothing of them is cast but texts of lists
(`pslib.schema.RaggedField.separator`). A file of text has none: `pslib.data.convert.by_values` finds one for
each column, by the values of that file alone. So the ids of one column may be integers in one file and text
in the next, and both agree here, without a loss::

    integers as text    7 is "7": a column is of integers only where each is written as Python writes it
    text as integers    "7" is 7, "true" is 1; any other text is a 64-bit hash of it, as a key is of its value
    floats as integers  7.0 is 7 where earlier data has integers; 7.5 is refused

Integers from 2^63 to 2^64 - 1 keep their bits, as those of a column of uint64 do in their keys.

`pslib.data.column_types.ColumnKinds` decides which of the two a vocabulary has.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pslib.data.columns import elements_of, is_list, keys_of, storage_type
from pslib.data.text_values import INTEGER, MISSING
from pslib.errors import DataError
from pslib.schema import Schema
from pslib.table.tables import text_hash

INTEGER_KIND, STRING_KIND = "integer", "string"
NUMBERS = b"pslib.numbers"
"""Metadata of a column of text, all of whose values are numbers or missing: 007 or NA among them, or none."""
NO_NUMBER, NO_TIME = b"pslib.no_number", b"pslib.no_time"
"""Metadata of another column of text: its first value that is no number, or no time."""
LEFT_OUT = b"pslib.left_out"
"""Metadata of a file: JSON of the columns that are left out, each with the reason."""

_NAMES_SALT = text_hash("name among integers")
_INT64_MAX, _UINT64_MAX = str(2**63 - 1), str(2**64 - 1)
_INT64_MIN = str(-(2**63))


def number_columns(schema: Schema) -> set[str]:
    """Columns that are read as numbers: of labels, a weight, dense fields and buckets."""
    buckets = (field.columns[0] for field in schema.sparse if field.buckets)
    weight = () if schema.weight is None else (schema.weight,)
    return {*(field.name for field in schema.dense), *schema.labels, *weight, *buckets}


class ColumnCasts:
    """Casts of the columns of a schema.

    Parameters
    ----------
    schema : Schema
    kinds : mapping of str to str
        Kind of the keys of a column: ``"integer"`` or ``"string"``; columns without one stay as they are.
    """

    def __init__(self, schema: Schema, kinds: Mapping[str, str] | None = None) -> None:
        self._separators = {
            field.name: field.separator for field in schema.ragged if field.separator is not None
        }
        self._numbers = number_columns(schema)
        self._kinds = {} if kinds is None else dict(kinds)

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the types of a file's columns after the casts, but for those of keys."""
        for place, column in enumerate(columns):
            kind = storage_type(column.type)
            if column.name in self._separators and _is_split(kind):
                columns = columns.set(place, column.with_type(pa.list_(pa.string())))
            elif column.name in self._numbers and NUMBERS in (column.metadata or {}):
                columns = columns.set(place, column.with_type(pa.float64()))
            elif self._is_integer(column.name) and types.is_floating(kind):
                columns = columns.set(place, column.with_type(pa.int64()))
        return columns

    def batch(self, batch: pa.RecordBatch, where: str = "data") -> pa.RecordBatch:
        """Return a record batch with the columns cast; it is the same one if none needs it.

        Parameters
        ----------
        batch : RecordBatch
        where : str
            Its file, for errors.

        Raises
        ------
        DataError
            If a float is none of the integers that a column has.
        """
        names, given = batch.schema.names, batch.columns
        try:
            columns = [self.column(name, array) for name, array in zip(names, given, strict=True)]
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        if all(new is old for new, old in zip(columns, given, strict=True)):
            return batch
        return pa.RecordBatch.from_arrays(columns, names)

    def column(self, name: str, array: pa.Array) -> pa.Array:
        """Return a column cast; it is the same array if it needs no cast."""
        if name in self._separators and _is_split(array.type):
            array = split(array, self._separators[name])
        elif name in self._numbers and (_is_text(array.type) or types.is_null(array.type)):
            array = numbers_in(array)
        kind = self._kinds.get(name)
        if kind is None or name in self._numbers:
            return array
        if self._is_integer(name) and types.is_floating(array.type):
            return _whole(array, name)
        return _of_kind(array, kind)

    def _is_integer(self, name: str) -> bool:
        """Return whether a column has ids that are known to be integers, and is no number."""
        return self._kinds.get(name) == INTEGER_KIND and name not in self._numbers


def _whole(array: pa.Array, name: str) -> pa.Array:
    """Return floats as the integers that they are: pandas makes floats of integers beside a missing value.

    Raises
    ------
    DataError
        If one is not whole, or so large that floats of its type don't have each integer: an id that was
        rounded would be another one.
    """
    end = 2.0 ** (np.finfo(array.type.to_pandas_dtype()).nmant + 1)
    known = pc.if_else(pc.is_nan(array), None, array)
    values = known.drop_null().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((values != np.floor(values)) | (np.abs(values) >= end))
    if wrong.size:
        came = float(values[wrong[0]])
        raise DataError(
            f"column {name!r}: expected whole numbers below {end:.0f}, as those that were trained on were "
            f"integers, got {came}; give the column as integers"
        )
    return known.cast(pa.int64())


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _is_split(kind: pa.DataType) -> bool:
    """Return whether values of a type are split at a separator: texts, and an integer as a list of one."""
    if types.is_dictionary(kind):
        return _is_split(kind.value_type)
    return _is_text(kind) or types.is_integer(kind)


def split(array: pa.Array, separator: str) -> pa.Array:
    """Split texts into lists; empty parts are left out, so that an empty text is an empty list.

    Parameters
    ----------
    array : pyarrow.Array
        Strings, or integers, each a list of one; or a dictionary of these.
    separator : str

    Returns
    -------
    pyarrow.Array
        Lists of strings; null where the text is null.
    """
    lists = pc.split_pattern(array.cast(pa.large_string()), separator).cast(pa.large_list(pa.string()))
    elements, bounds = elements_of(lists)
    full = pc.not_equal(elements, "")
    if not full.false_count:
        return lists
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(full.to_numpy(zero_copy_only=False))])
    offsets = pa.array(before[np.asarray(bounds, np.int64) - int(bounds[0])])
    absent = lists.is_null() if lists.null_count else None
    return pa.LargeListArray.from_arrays(offsets, elements.filter(full), mask=absent)


def numbers_in(array: pa.Array) -> pa.Array:
    """Return texts of numbers as float64; null for those of `MISSING`.

    Raises
    ------
    pyarrow.ArrowInvalid
        If one is neither.
    """
    try:
        numbers = array.cast(pa.float64())
        return pc.if_else(pc.is_nan(numbers), None, numbers)
    except pa.ArrowInvalid:  # or words for what is missing, or white space
        texts = pc.utf8_trim_whitespace(array.cast(pa.large_string()))
        missing = pc.is_in(texts, pa.array(MISSING, pa.large_string()))
        return pc.if_else(missing, None, texts).cast(pa.float64())


def integers_in(texts: pa.Array, largest: str = _INT64_MAX) -> pa.Array:
    """Return a mask of the texts that Python writes for an int64: 7 and -7, but not 007, +7 or 7.0."""
    bound = pc.if_else(pc.starts_with(texts, "-"), _INT64_MIN, largest).cast(texts.type)
    length, most = pc.binary_length(texts), pc.binary_length(bound)
    # Texts of digits of one length are in the order of their numbers.
    beyond = pc.or_(pc.greater(length, most), pc.and_(pc.equal(length, most), pc.greater(texts, bound)))
    return pc.and_not(pc.match_substring_regex(texts, f"^(?:{INTEGER})$"), beyond)


def as_integers(texts: pa.Array) -> pa.Array:
    """Return texts as int64: integers (of a uint64 the bits), truth values as 0 and 1, others as a hash."""
    large = texts.cast(pa.large_string())
    place = pc.index_in(pc.ascii_lower(large), pa.array(["false", "true"], pa.large_string()))
    whole = integers_in(large)
    beyond = pc.and_not(integers_in(large, _UINT64_MAX), whole)
    numbers = pc.coalesce(
        pc.if_else(whole, large, None).cast(pa.int64()),
        pc.if_else(beyond, large, None).cast(pa.uint64()).cast(pa.int64(), safe=False),
        place.cast(pa.int64()),
    )
    if numbers.null_count == large.null_count:
        return numbers
    hashes = pa.array(keys_of(large, _NAMES_SALT).view(np.int64))
    return pc.if_else(large.is_valid(), pc.coalesce(numbers, hashes), None)


def _of_kind(array: pa.Array, kind: str) -> pa.Array:
    """Return a column of keys, or of lists of them, with keys of a kind."""
    if is_list(array.type):
        elements, bounds = elements_of(array)
        cast = _of_kind(elements, kind)
        if cast is elements:
            return array
        offsets = pa.array(np.asarray(bounds, np.int64) - int(bounds[0]))
        return pa.LargeListArray.from_arrays(
            offsets, cast, mask=array.is_null() if array.null_count else None
        )
    if kind == STRING_KIND and types.is_integer(array.type):
        return array.cast(pa.string())
    if kind == INTEGER_KIND and _is_text(array.type):
        return as_integers(array)
    return array
