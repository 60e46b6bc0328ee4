"""Window decoder: one window of examples from Parquet, as plain arrays of values and keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from cython_ext.data.examples import fill_keys, fill_numbers
from pslib.data.arrow_data import ArrowData, TableScanner
from pslib.data.columns import bitmap_of, elements_of, key_source, numbers_of
from pslib.data.dataset import ParquetData, RowGroup, RowNumbers, open_parquet
from pslib.data.features import field_source
from pslib.data.order import GroupSlice
from pslib.data.parquet_files import SCAN_ROWS, OpenedAhead, group_batches, open_file, parquet_from
from pslib.data.value_checks import DENSE, LABEL, WEIGHT, Rule, first_problem
from pslib.errors import DataError
from pslib.schema import DenseField, Schema
from pslib.storage import shown as shown_path
from pslib.text import counted, one_line

Lists = tuple[NDArray[Any], NDArray[Any], int | None]
"""Elements, offsets and salt, as `cython_ext.data.batch_keys.batch_keys` takes them."""

_NARROW_MAX = 2**31 - 1
_TINY_MAX = 2**16 - 1
_SMALLEST, _LARGEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


class ListBuffer:
    """Elements of one list column, in arrays reused from window to window.

    Integers are stored as integers of 2 or 4 bytes while all elements of the window fit and none is null:
    batches gather them in shuffled order from memory, and small integers cost less memory traffic than 8-byte
    keys. From the first part with any other element on, elements are stored as keys.

    Parameters
    ----------
    salt : int
        Salt of the field.
    """

    def __init__(self, salt: int) -> None:
        self._salt = salt
        self._integers: dict[type[np.integer[Any]], NDArray[Any]] = {
            kind: np.empty(0, kind) for kind in (np.uint16, np.int32)
        }
        self._kind: type[np.integer[Any]] = np.uint16
        self._keys = np.empty((0, 1), np.uint64)
        self._offsets: NDArray[Any] = np.zeros(1, np.int32)
        self._rows = self._used = 0
        self._hashed = False

    def begin(self, rows: int) -> None:
        """Begin a new window of ``rows`` rows."""
        self._rows = self._used = 0
        self._hashed, self._kind = False, np.uint16
        if rows >= self._offsets.size or self._offsets.dtype != np.int32:
            self._offsets = np.zeros(rows + 1, np.int32)

    def add(self, array: pa.Array) -> None:
        """Append the lists of more rows."""
        elements, bounds = elements_of(array)
        small = None if self._hashed else _small_integers(elements)
        if small is None:
            self._add_keys(elements)
        else:
            self._add_integers(*small)
        stop, before = self._rows + len(array), self._used
        self._used += len(elements)
        if self._used > _NARROW_MAX and self._offsets.dtype == np.int32:
            self._offsets = self._offsets.astype(np.int64)
        ends = self._offsets[self._rows + 1 : stop + 1]
        kind = np.int32 if bounds.dtype == ends.dtype == np.int32 else np.int64
        np.add(bounds[1:], before - int(bounds[0]), out=ends, dtype=kind, casting="same_kind")
        self._rows = stop

    def lists(self) -> Lists:
        """Return all lists of the window."""
        offsets = self._offsets[: self._rows + 1]
        if self._hashed:
            return self._keys[: self._used, 0], offsets, None
        return self._integers[self._kind][: self._used], offsets, self._salt

    def _add_integers(self, values: NDArray[Any], kind: type[np.integer[Any]]) -> None:
        if kind is not self._kind and kind is np.int32:
            wider = _with_room(self._integers[kind], 0, self._used)
            wider[: self._used] = self._integers[self._kind][: self._used]
            self._integers[kind], self._kind = wider, kind
        room = self._integers[self._kind] = _with_room(self._integers[self._kind], self._used, values.size)
        np.copyto(room[self._used : self._used + values.size], values, casting="unsafe")

    def _add_keys(self, elements: pa.Array) -> None:
        if not self._hashed:
            self._keys = _with_room(self._keys, 0, self._used)
            before = self._integers[self._kind][: self._used]
            fill_keys([(before, None, 0, self._salt, None)], self._keys[: self._used])
            self._hashed = True
        self._keys = _with_room(self._keys, self._used, len(elements))
        end = self._used + len(elements)
        fill_keys([key_source(elements, self._salt)], self._keys[self._used : end])


def _with_room(array: NDArray[Any], used: int, more: int) -> NDArray[Any]:
    """Return the array, or a larger copy of its used part, with room for more elements."""
    if used + more <= len(array):
        return array
    grown = np.empty((max(used + more, 2 * len(array)), *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown


def _small_integers(elements: pa.Array) -> tuple[NDArray[Any], type[np.integer[Any]]] | None:
    """Elements in the smallest integer type, if they are integers that fit int32; else None."""
    if not len(elements):
        return np.empty(0, np.uint16), np.uint16
    if not types.is_integer(elements.type) or elements.null_count:
        return None
    values = numbers_of(elements)
    every = int(np.bitwise_or.reduce(values))  # one pass; negative if one of them is
    if 0 <= every <= _TINY_MAX:
        return values, np.uint16
    fits = np.can_cast(values.dtype, np.int32)
    return (values, np.int32) if fits or (values.min() >= _SMALLEST and values.max() <= _LARGEST) else None


SPARE_BYTES_MAX = 256 << 20
"""Most bytes kept unused for the next reader after a close, as `launch.worker.main` allows a process."""

Floats = NDArray[np.float32]
_NumberSource = tuple[NDArray[Any], NDArray[np.uint8] | None, int, float, bool]


@dataclass(frozen=True, slots=True, eq=False)
class DecodedWindow:
    """Examples of one window in the order of its slices.

    Attributes
    ----------
    labels : (n,) float32
    dense : (n, N) float32
        Filled and squeezed per the schema.
    sparse_keys : (n, F) uint64
    lists : one (values, offsets, salt) per ragged field
        As `cython_ext.data.batch_keys.batch_keys` takes them.
    more_labels : (n, M) float32 or None
    weights : (n,) float32 or None
    """

    labels: Floats
    dense: Floats
    sparse_keys: NDArray[np.uint64]
    lists: tuple[Lists, ...]
    more_labels: Floats | None
    weights: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class _Room:
    """Arrays that windows are decoded into; as in `DecodedWindow`, sized for the largest window so far."""

    labels: Floats
    dense: Floats
    sparse: NDArray[np.uint64]
    more_labels: Floats
    weights: Floats

    @staticmethod
    def of(rows: int, schema: Schema) -> _Room:
        """Allocate arrays for so many rows."""
        return _Room(
            np.empty(rows, np.float32),
            np.empty((rows, len(schema.dense)), np.float32),
            np.empty((rows, len(schema.sparse)), np.uint64),
            np.empty((rows, len(schema.more_labels)), np.float32),
            np.empty(rows if schema.weight is not None else 0, np.float32),
        )

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""
        parts = (self.labels, self.dense, self.sparse, self.more_labels, self.weights)
        return sum(array.nbytes for array in parts)

    def part(self, rows: slice) -> _Room:
        """Return a slice of rows."""
        return _Room(
            self.labels[rows], self.dense[rows], self.sparse[rows], self.more_labels[rows], self.weights[rows]
        )


_SPARE: list[tuple[tuple[int, ...], _Room]] = []
"""Arrays of at most one closed decoder, by their widths, for reuse.

The system clears fresh memory beyond 32 MiB, which no allocator keeps, at a tenth of the time that int64
columns take.
"""


def _widths(schema: Schema) -> tuple[int, ...]:
    return len(schema.dense), len(schema.sparse), len(schema.more_labels), schema.weight is not None


def _room_for(rows: int, schema: Schema) -> _Room:
    with suppress(IndexError):  # another thread may take it
        widths, spare = _SPARE.pop()
        if widths == _widths(schema) and spare.labels.size >= rows:
            return spare
    return _Room.of(rows, schema)


class GroupScanner:
    """Read slices of row groups; a slice that continues the previous one decodes nothing twice.

    Parameters
    ----------
    data : ParquetData
    """

    def __init__(self, data: ParquetData) -> None:
        self._data = data
        self._opened = OpenedAhead(_opened_whole)
        self._file: pq.ParquetFile | None = None
        self._file_name = ""
        self._group = -1
        self._position = 0
        self._batches: Iterator[tuple[RowNumbers, pa.RecordBatch]] = iter(())
        self._rest: tuple[RowNumbers, pa.RecordBatch] | None = None

    def expect(self, pieces: Sequence[GroupSlice]) -> None:
        """Announce the slices to be read, in order."""
        files = (self._data.row_groups[piece.row_group].file for piece in pieces)
        self._opened.expect([file for file, _ in groupby(files) if file != self._file_name])

    def rows(self, piece: GroupSlice) -> Iterator[tuple[RowNumbers, pa.RecordBatch]]:
        """Yield record batches of the slice, each with the numbers of its rows in the file.

        Raises
        ------
        DataError
            If the file is missing, changed or damaged.
        """
        group = self._data.row_groups[piece.row_group]
        try:
            if self._group != piece.row_group or piece.start < self._position:
                self._start(piece.row_group)
            while self._position < piece.stop:
                rows, batch = self._rest if self._rest is not None else next(self._batches)
                taken = batch.slice(0, piece.stop - self._position)
                self._rest = (
                    (rows[len(taken) :], batch.slice(len(taken))) if len(taken) < len(batch) else None
                )
                skipped = max(0, piece.start - self._position)
                self._position += len(taken)
                if skipped < len(taken):
                    yield rows[skipped : len(taken)], taken.slice(skipped)
        except (OSError, pa.ArrowException) as error:
            self.close()
            raise DataError(unreadable(group, self._data.schema.columns, error)) from error

    def close(self) -> None:
        """Close the open file and those opened ahead; the next slice opens its own."""
        self._opened.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close(force=True)
        self._file, self._file_name, self._group = None, "", -1
        self._rest, self._batches = None, iter(())

    def _start(self, index: int) -> None:
        group = self._data.row_groups[index]
        if group.file != self._file_name:
            self._close_file()
            self._file = self._opened.open(group.file)
            self._file_name = group.file
        assert self._file is not None
        columns = list(self._data.schema.columns)
        _check_same(self._file, columns, group)
        found = group_batches(self._file, group.row_group, columns, SCAN_ROWS)
        batches = (self._data.casts.batch(batch, shown_path(group.file)) for batch in found)
        kept = self._data.kept
        self._batches = _numbered(group, batches, None if kept is None else kept.mask(index))
        self._group, self._position, self._rest = index, 0, None


def _numbered(
    group: RowGroup, batches: Iterator[pa.RecordBatch], mask: NDArray[np.bool_] | None
) -> Iterator[tuple[RowNumbers, pa.RecordBatch]]:
    """Yield the rows of a row group that are in the mask, with their numbers in the file."""
    done = 0
    for batch in batches:
        first, size = group.first_row + done, len(batch)
        if mask is None or mask[done : done + size].all():
            yield range(first, first + size), batch
        else:
            chosen = np.flatnonzero(mask[done : done + size])
            yield first + chosen, batch.take(pa.array(chosen))
        done += size


def scanner_of(data: ParquetData) -> GroupScanner | TableScanner:
    """Return a scanner of files or of a table in memory."""
    return TableScanner(data) if isinstance(data, ArrowData) else GroupScanner(data)


def _check_same(file: pq.ParquetFile, columns: Iterable[str], group: RowGroup) -> None:
    """Raise ArrowInvalid if a file replaced meanwhile has other columns or rows in the row group."""
    lacked = sorted(set(columns).difference(file.schema_arrow.names))
    if lacked:
        raise pa.ArrowInvalid(f"it has no column {lacked[0]!r} now")
    groups = file.metadata.num_row_groups
    if group.row_group >= groups:
        raise pa.ArrowInvalid(f"it has {counted(groups, 'row group')} now")
    rows = file.metadata.row_group(group.row_group).num_rows
    if rows != group.rows + group.held_out:
        raise pa.ArrowInvalid(f"expected {counted(group.rows + group.held_out, 'row')}, got {rows:,}")


def unreadable(group: RowGroup, columns: Iterable[str], error: BaseException) -> str:
    """Error line for a row group with an unreadable column, naming the column."""
    named, why = _damaged_column(group, columns) or ("", error)
    return (
        f"{shown_path(group.file)}: row group {group.row_group} can't be read any more{named} "
        f"({one_line(why)}); was it changed meanwhile? write it anew and start again"
    )


def _damaged_column(group: RowGroup, columns: Iterable[str]) -> tuple[str, Exception] | None:
    """Name and error of the unreadable column of a row group; None where the whole file is unreadable."""
    with suppress(OSError, pa.ArrowException, IndexError), open_parquet(group.file) as opened:
        for name in columns if group.row_group < opened.metadata.num_row_groups else ():
            try:
                for _ in group_batches(opened, group.row_group, [name], SCAN_ROWS):
                    pass
            except (OSError, pa.ArrowException) as error:
                return f", column {name!r}", error
    return None


def _opened_whole(file: str) -> pq.ParquetFile:
    """Open a file that will be read whole.

    Does not use ``read_dictionary``, which would hash each string of a dictionary once (a tenth of an epoch):
    of a dictionary with a duplicate string Arrow drops one, and gives rows the wrong strings.
    """
    return parquet_from(open_file(file, whole=True))


class WindowDecoder:
    """Decode one window at a time into reused arrays; allocating fresh ones costs more than filling them.

    Parameters
    ----------
    data : ParquetData
    """

    def __init__(self, data: ParquetData) -> None:
        self._data, self._schema = data, data.schema
        self._scanner = scanner_of(data)
        self._room = _Room.of(0, self._schema)
        self._lists = [ListBuffer(field.salt) for field in data.schema.ragged]
        self._writes = False  # a thread is in `decode`, or an error has ended it there

    def decode(self, pieces: Sequence[GroupSlice]) -> DecodedWindow:
        """Read and hash the slices of one window; overwrites the previous window.

        Raises
        ------
        DataError
            For the first label, weight or dense value that `pslib.data.value_checks` has a rule against:
            file, row (0-based, in the file), column and value; or if a file can't be read any more.
        """
        rows, self._writes = sum(piece.rows for piece in pieces), True
        if rows > self._room.labels.size:
            self._room = _room_for(rows, self._schema)
        room = self._room.part(slice(0, rows))
        for lists in self._lists:
            lists.begin(rows)
        position = 0
        self._scanner.expect(pieces)
        for piece in pieces:
            group = self._data.row_groups[piece.row_group]
            for numbers, batch in self._scanner.rows(piece):
                part = room.part(slice(position, position + len(batch)))
                self._fill(batch, _Where(group.file, group.row_group, numbers), part)
                for field, lists in zip(self._schema.ragged, self._lists, strict=True):
                    lists.add(batch.column(field.name))
                position += len(batch)
        self._writes = False
        return DecodedWindow(
            room.labels,
            room.dense,
            room.sparse,
            tuple(lists.lists() for lists in self._lists),
            room.more_labels if self._schema.more_labels else None,
            room.weights if self._schema.weight is not None else None,
        )

    def close(self) -> None:
        """Close the open file and release the arrays for the next decoder.

        The arrays are not released if a thread may still write to them: a thread blocked in a read may
        outlive its fit.
        """
        self._scanner.close()
        if not self._writes and 0 < self._room.bytes <= SPARE_BYTES_MAX:
            _SPARE[:] = [(_widths(self._schema), self._room)]
        self._room = _Room.of(0, self._schema)
        self._lists = [ListBuffer(field.salt) for field in self._schema.ragged]

    def _fill(self, batch: pa.RecordBatch, where: _Where, out: _Room) -> None:
        schema = self._schema
        labels = [_held_to(LABEL, batch.column(name), name, where) for name in schema.labels]
        out.labels[:] = labels[0] if labels else 0
        for place, values in enumerate(labels[1:]):
            out.more_labels[:, place] = values
        if schema.weight is not None:
            out.weights[:] = _held_to(WEIGHT, batch.column(schema.weight), schema.weight, where)
        self._fill_dense(batch, where, out.dense)
        fill_keys([field_source(batch, field) for field in schema.sparse], out.sparse)

    def _fill_dense(self, batch: pa.RecordBatch, where: _Where, out: NDArray[np.float32]) -> None:
        fields = self._schema.dense
        columns = [batch.column(field.name) for field in fields]
        sources = [_number_source(*one) for one in zip(columns, fields, strict=True)]
        for i in fill_numbers(sources, out):
            where.check(columns[i], fields[i].name, DENSE)


@dataclass(frozen=True, slots=True)
class _Where:
    """Source of a record batch, for messages."""

    file: str
    row_group: int
    rows: RowNumbers

    def check(self, array: pa.Array, name: str, rule: Rule) -> None:
        """Raise DataError for the first value that breaks the rule."""
        bad = rule.bad(array)
        if bad.any():
            first = int(np.argmax(bad))
            row = int(self.rows[first])
            raise DataError(
                str(first_problem(array.slice(first), rule, self.file, row, self.row_group, name))
            )


def _held_to(rule: Rule, array: pa.Array, name: str, where: _Where) -> NDArray[np.generic]:
    """Return the values of a column after checking the rule."""
    where.check(array, name, rule)
    return numbers_of(array)


def _number_source(array: pa.Array, field: DenseField) -> _NumberSource:
    """Dense column as input of `cython_ext.data.examples.fill_numbers`."""
    plain = array.cast(array.type.value_type) if types.is_dictionary(array.type) else array
    values = numbers_of(plain)
    if types.is_null(plain.type):
        return np.full(len(plain), field.fill, np.float32), None, 0, field.fill, field.log1p
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    return (values, *bitmap_of(plain), field.fill, field.log1p)
