"""Record batches of a row group: columns of numbers and strings straight from their pages, others by Arrow.

Arrow decodes columns of any depth and encoding, going over levels, bitmaps and values in turn. Most columns
of ids and numbers are flat, or lists of integers, and written with a dictionary: for those `cython_ext.pages`
has one pass each. Strings of a dictionary Arrow looks up among those that it has seen, which nobody needs.
What is not understood, or found damaged, is read by Arrow, with Arrow's errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from cython_ext.pages import codecs_known, flat_page, list_page
from pslib.data.chunk_pages import CODECS, ChunkPages, Header, Made, NotUnderstoodError, TextPages

__all__ = ["PageColumns"]

MADE = {b"pslib.made": b"1"}
"""Metadata of a column that holds what was made of a file's values."""

Marks = NDArray[np.uint8]

PAGE_ROWS = 1 << 15
"""Room for a page beyond the rows that are wanted: Arrow ends pages after 20,000 rows, Spark too."""

_PLACED = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})
_ENCODINGS = frozenset({"PLAIN", "RLE", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "BIT_PACKED"})
_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_NUMBERS = (
    types.is_int32,
    types.is_uint32,
    types.is_int64,
    types.is_uint64,
    types.is_float32,
    types.is_float64,
)


class _Flat:
    """Values of a flat column, some rows at a time.

    Where that is wanted, integers of 8 bytes come as uint32 while their dictionary fits it: half as much goes
    through the cache.
    """

    def __init__(self, pages: ChunkPages, optional: bool) -> None:
        self._pages, self._optional = pages, optional
        self._values, self._valid = np.empty(0, pages.dtype), np.empty(0, np.uint8)
        self._plain = pages.dtype

    def take(self, rows: int) -> pa.Array:
        """The next so many rows."""
        used, values, valid, some_null = self._values.size, self._values, self._valid, False
        if used < rows:
            values, valid = _grown(values, used, rows), _grown(valid, used, rows)
        some_null = bool(used) and not self._valid.all()
        while used < rows:
            header, body = self._pages.next()
            dictionary = self._pages.dictionary_for(header)
            stop, wanted = used + header.values, self._plain if dictionary is None else dictionary.dtype
            if stop > values.size:
                values, valid = _grown(values, used, stop), _grown(valid, used, stop)
            if values.dtype != wanted:
                values = _in_common(values, used, wanted)
                dictionary = None if dictionary is None else dictionary.astype(values.dtype, copy=False)
            nulls = self._page(header, body, dictionary, values[used:stop], valid[used:stop])
            if nulls < 0:
                raise NotUnderstoodError
            some_null |= nulls > 0
            used = stop
        self._values, self._valid = values[rows:used].copy(), valid[rows:used].copy()
        marks = pa.py_buffer(np.packbits(valid[:rows], bitorder="little")) if some_null else None
        return self._array(rows, marks, values)

    def _page(
        self, header: Header, body: Any, coded: NDArray[Any] | None, out: NDArray[Any], valid: Marks
    ) -> int:
        """The values of a page and which of them are there; how many are not, or -1."""
        return flat_page(body, header.values, header.level_bytes, self._optional, coded, out, valid)

    def _array(self, rows: int, marks: pa.Buffer | None, values: NDArray[Any]) -> pa.Array:
        return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), rows, [marks, pa.py_buffer(values)])


class _MadeOf(_Flat):
    """What is made of the integers of a flat column: of those in a dictionary once."""

    def __init__(self, pages: ChunkPages, optional: bool, made: Made) -> None:
        super().__init__(pages, optional)
        self._made, self._values = made, made(self._values)
        self._plain = self._values.dtype

    def _page(
        self, header: Header, body: Any, coded: NDArray[Any] | None, out: NDArray[Any], valid: Marks
    ) -> int:
        if coded is not None:
            return super()._page(header, body, coded, out, valid)
        values = np.zeros(out.size, self._pages.dtype)
        nulls = super()._page(header, body, None, values, valid)
        out[:] = self._made(values)
        return nulls


class _Texts(_Flat):
    """Strings of a flat column, as places in their dictionary."""

    def __init__(self, pages: TextPages, arrow: pa.DataType, optional: bool) -> None:
        super().__init__(pages, optional)
        self._texts, self._arrow = pages, arrow

    def _array(self, rows: int, marks: pa.Buffer | None, values: NDArray[Any]) -> pa.Array:
        buffers = [marks, pa.py_buffer(values)]
        return pa.DictionaryArray.from_buffers(self._arrow, rows, buffers, self._texts.texts)


class _ListsOf:
    """Lists of integers, some rows at a time."""

    def __init__(self, pages: ChunkPages, arrow: pa.DataType, most: int, empty: int) -> None:
        self._pages, self._most, self._empty = pages, most, empty
        self._arrow = arrow
        self._values = np.empty(0, _dtype_of(arrow.value_type))
        self._ends, self._rows = np.zeros(1, np.int32), 0

    def take(self, rows: int) -> pa.Array:
        """The next so many rows."""
        values, ends, known = self._values, self._ends, self._rows
        used = int(ends[known])
        ends = _grown(ends, known + 1, rows + 1)
        while known - (self._pages.left > 0) < rows:  # the last list may go on in the next page
            header, body = self._pages.next()
            stop = used + header.values
            if stop > values.size:
                values = _grown(values, used, stop + self._expected(rows, known, header.values))
            if known + 1 + header.values > ends.size:
                ends = _grown(ends, known + 1, known + 1 + header.values)
            known = list_page(
                body, header.values, (header.repeat_bytes, header.level_bytes), self._most, self._empty,
                self._pages.dictionary_for(header), values[used:stop], ends, known,
            )  # fmt: skip
            if known < 0:
                raise NotUnderstoodError
            used = int(ends[known])
        last = int(ends[rows])
        self._values, self._rows = values[last:used].copy(), known - rows
        self._ends = ends[rows : known + 1] - np.int32(last)
        elements = pa.Array.from_buffers(self._arrow.value_type, last, [None, pa.py_buffer(values)])
        return pa.Array.from_buffers(self._arrow, rows, [None, pa.py_buffer(ends)], 0, children=[elements])

    def _expected(self, rows: int, known: int, page: int) -> int:
        """Elements for which room is made at once, that it need not be made again."""
        return min(self._pages.left, 2 * page) if known < rows else 0


def _in_common(values: NDArray[Any], used: int, wanted: np.dtype[Any]) -> NDArray[Any]:
    """An array as long, of the wider one of two types of which one is uint32 where they differ."""
    dtype = wanted if not used or wanted.itemsize == 8 else values.dtype
    common = np.empty(values.size, dtype)
    common[:used] = values[:used]
    return common


def _grown(array: NDArray[Any], used: int, size: int) -> NDArray[Any]:
    """An array of so many values that begins with those used."""
    grown = np.empty(size + PAGE_ROWS, array.dtype)
    grown[:used] = array[:used]
    return grown


class _Kind(NamedTuple):
    """A column that can be read from its pages: where it is, and its levels (``empty`` None: it is flat)."""

    place: int
    arrow: pa.DataType
    most: int
    empty: int | None


class PageColumns:
    """The columns of a file, those of numbers read from their pages.

    Parameters
    ----------
    file : pyarrow.parquet.ParquetFile
    source : pyarrow.NativeFile
        What ``file`` reads.
    columns : sequence of str
    narrow : bool
        Integers may come in a narrower type than the file's.
    far : bool
        Each read waits for an answer: Arrow, which asks for a whole row group at once, is left to read all.
    made : mapping of str to callable, or None
        What is made of an integer column's values where that costs less than making it of the column: it then
        has the metadata MADE. Of what stands under a null anything may be made.

    Attributes
    ----------
    lacked : list of str
        Columns that the file does not have.
    """

    def __init__(
        self, file: pq.ParquetFile, source: pa.NativeFile, columns: Sequence[str],
        narrow: bool = False, far: bool = False, made: Mapping[str, Made] | None = None,
    ) -> None:  # fmt: skip
        self._made = made or {}
        self._file, self._source, self._names, self._narrow = file, source, list(columns), narrow
        self._metadata = file.metadata
        schema, arrow = self._metadata.schema, file.schema_arrow
        self.lacked = sorted(set(self._names).difference(arrow.names))
        places: dict[str, list[int]] = {}
        for i in range(self._metadata.num_columns):
            path = schema.column(i).path
            for name in (path, *(path[:k] for k, letter in enumerate(path) if letter == ".")):
                places.setdefault(name, []).append(i)
        self._kinds: dict[str, _Kind | None] = {}
        may_ask = not far and codecs_known(_footer_of(source))  # else pyarrow would end the process
        for name in self._names:
            first, *others = places.get(name, [-1])
            alone = first >= 0 and not others and may_ask
            self._kinds[name] = _kind_of(schema.column(first), arrow.field(name), first) if alone else None

    def batches(self, group: int, rows: int) -> Iterator[pa.RecordBatch]:
        """A row group, at most so many rows at a time.

        Raises
        ------
        OSError, pyarrow.ArrowException
            As Arrow raises them where the file can't be read.
        """
        given = 0
        try:
            for batch in self._from_pages(group, rows):
                yield batch
                given += len(batch)
        except (NotUnderstoodError, OSError, pa.ArrowException):
            pass  # Arrow reads it, or says in its own words why it can't either
        else:
            return
        for batch in self._by_arrow(group, rows, self._names):
            known = min(given, len(batch))
            given -= known
            if known < len(batch):
                yield batch.slice(known)

    def _by_arrow(self, group: int, rows: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        return self._file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)

    def _from_pages(self, group: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        metadata = self._metadata.row_group(group)
        readers = {name: self._reader(metadata, name, kind) for name, kind in self._kinds.items()}
        by_arrow = [name for name, reader in readers.items() if reader is None]
        if len(by_arrow) == len(readers):
            raise NotUnderstoodError
        left, others = metadata.num_rows, self._by_arrow(group, batch_rows, by_arrow) if by_arrow else None
        while left > 0:
            batch: Any = next(others, None) if others is not None else None
            rows = min(left, batch_rows) if others is None else len(batch) if batch is not None else 0
            if not 0 < rows <= left:
                raise NotUnderstoodError
            left -= rows
            columns = [
                self._taken(name, reader, rows) if reader else batch.column(name)
                for name, reader in readers.items()
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_schema_of(readers, columns))

    def _taken(self, name: str, reader: _Flat | _ListsOf, rows: int) -> pa.Array:
        """Rows of a column; one that is not understood once is Arrow's in all row groups to come."""
        try:
            return reader.take(rows)
        except NotUnderstoodError:
            self._kinds[name] = None
            raise

    def _reader(self, group: pq.RowGroupMetaData, name: str, kind: _Kind | None) -> _Flat | _ListsOf | None:
        """Who reads a column of a row group from its pages; None: Arrow does."""
        if kind is None:
            return None
        chunk = group.column(kind.place)
        if chunk.compression not in CODECS or not _ENCODINGS.issuperset(chunk.encodings) or chunk.file_path:
            return None
        if kind.empty is None and types.is_dictionary(kind.arrow):
            if not _PLACED.intersection(chunk.encodings):
                return None
            optional = kind.most > 0
            texts = TextPages(self._source, chunk, kind.arrow.value_type, optional)
            return _Texts(texts, kind.arrow, optional) if texts.all_coded() else None
        if kind.empty is None:
            dtype, optional = _dtype_of(kind.arrow), kind.most > 0
            made = self._made.get(name) if types.is_integer(kind.arrow) else None
            flat = ChunkPages(self._source, chunk, dtype, self._narrow, (optional, False), made)
            return _MadeOf(flat, optional, made) if made else _Flat(flat, optional)
        pages = ChunkPages(self._source, chunk, _dtype_of(kind.arrow.value_type), False, (True, True))
        return _ListsOf(pages, kind.arrow, kind.most, kind.empty)


def _footer_of(source: pa.NativeFile) -> bytes:
    """A file's FileMetaData, before its length and ``PAR1`` at the end."""
    end = source.size() - 8
    size = int.from_bytes(source.read_at(4, max(end, 0)), "little")
    return bytes(source.read_at(size, end - size)) if size <= end else b""


def _schema_of(readers: Mapping[str, object], columns: list[pa.Array]) -> pa.Schema:
    made = [MADE if isinstance(reader, _MadeOf) else None for reader in readers.values()]
    return pa.schema(
        [
            pa.field(name, column.type, metadata=some)
            for name, column, some in zip(readers, columns, made, strict=True)
        ]
    )


def _kind_of(column: pq.ColumnSchema, field: pa.Field, place: int) -> _Kind | None:
    """None: a column that is left to Arrow."""
    is_list, levels = types.is_list(field.type), int(field.nullable)
    value = field.type.value_type if is_list else field.type
    if types.is_dictionary(value):
        fits = not is_list and value.index_type == pa.int32() and column.physical_type == "BYTE_ARRAY"
        fits &= types.is_string(value.value_type) or types.is_binary(value.value_type)
    else:
        fits = any(test(value) for test in _NUMBERS)
        fits = fits and _WIDTHS.get(column.physical_type) == value.bit_width // 8
    if not fits or column.max_repetition_level != is_list:
        return None
    if not is_list:
        flat = column.path == field.name and column.max_definition_level == levels
        return _Kind(place, field.type, levels, None) if flat else None
    most = levels + 1 + int(field.type.value_field.nullable)
    known = types.is_integer(value) and column.max_definition_level == most
    return _Kind(place, field.type, most, levels) if known else None


def _dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(kind.to_pandas_dtype())
