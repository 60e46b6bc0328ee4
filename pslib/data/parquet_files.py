"""Parquet files, opened on demand from a disk or ahead of use from an object store.

An object store replies after 20 to 100 ms, so cost is the number of sequential replies. A small file is
fetched whole with one request; threads open the next files of a window in the background.

pyarrow ends the process when it is asked for a column chunk (`pyarrow.parquet.RowGroupMetaData.column`) whose
metadata or statistics are damaged or encrypted: no Python code catches that C++ exception. `pyarrow.dataset`
ends it too, when a filter asks for statistics. So nothing here asks for a chunk: what can't be read is told
by reading it (`group_batches`), and statistics, which are hints, are read from the footer (`statistics_in`).
"""

from __future__ import annotations

import logging
import re
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pslib.clock import Clock, SystemClock
from pslib.data.columns import plain_batch
from pslib.data.text_cache import stored_as
from pslib.errors import DataError
from pslib.storage import is_uri, open_uri
from pslib.text import counted

THREADS = 16
"""Threads, each waiting for one file: a footer on S3 takes two replies of 20 to 100 ms each."""

FILES_FEW = 8
"""Up to this many local files are read faster than threads start."""

REPORT_S = 5.0

UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError, DataError)
"""Errors of opening a file: it is missing or damaged, a name in it is no text, or it can't be converted."""

log = logging.getLogger(__name__)
FoundT = TypeVar("FoundT")


def about_each(
    files: Sequence[str], look: Callable[[str], FoundT], clock: Clock | None = None
) -> Iterator[FoundT]:
    """Return ``look`` of each file, in file order; report progress if slow.

    Parameters
    ----------
    files : sequence of str
    look : callable
        Called by several threads at once.
    clock : Clock or None
    """
    if len(files) <= FILES_FEW:
        yield from map(look, files)
        return
    clock = clock or SystemClock()
    said_s = clock.now_s()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="looks into files") as pool:
        for done, found in enumerate(pool.map(look, files), 1):
            yield found
            if clock.now_s() - said_s > REPORT_S:
                said_s = clock.now_s()
                log.warning("pslib: looked into %d of %d files", done, len(files))


READ_BYTES = 1 << 20
"""Read-ahead of each column; bounds memory for any row-group size."""

SCAN_ROWS = 65_536
"""Rows decoded at a time: bounds memory for any row-group size, and still amortises calls."""

WHOLE_BYTES = 4 << 20
"""Largest file fetched whole from an object store, so that footer and columns are one reply."""

AHEAD = 16
"""Object-store files opened ahead of use: 64 MiB at most."""

FOOTER_BYTES = 64 << 10
"""Bytes at the end of a file that are read at once; nearly every footer is smaller."""
FOOTER_END = struct.Struct("<I4s")
"""Length of the metadata, and the last word of a file."""


def is_far(file: str) -> bool:
    """Return whether each read of a file waits for a network reply."""
    return is_uri(file) and not file.lower().startswith("file:")


def open_file(file: str, *, whole: bool = False) -> pa.NativeFile:
    """Open a path or URI for reading.

    Reads instead of mapping into memory: a mapped file that another process rewrites ends this process with
    SIGBUS, while a read raises an error. Speed is the same (880,000 examples/s of CPU on the demo's data
    either way, 2026-11-21).

    Parameters
    ----------
    file : str
        Of text its Parquet is opened (`pslib.data.text_cache`).
    whole : bool
        The whole file will be read: fetch a small file of an object store at once.

    Raises
    ------
    OSError
    DataError
        If it is text that can't be converted.
    """
    try:
        source = _source(file)
    except FileNotFoundError:  # the cache's entry was removed between its name and here: it is made anew
        source = _source(file)
    if not whole or not is_far(file) or source.size() > WHOLE_BYTES:
        return source
    with source:
        return pa.BufferReader(source.read_buffer())


def _source(file: str) -> pa.NativeFile:
    filesystem, path = open_uri(stored_as(file))
    return filesystem.open_input_file(path)


def parquet_from(source: pa.NativeFile) -> pq.ParquetFile:
    """Open a Parquet file from an open source; close the source if it is not Parquet."""
    try:
        return pq.ParquetFile(
            source,
            buffer_size=READ_BYTES,
            page_checksum_verification=True,
            # Nanoseconds, the default, wrap outside of 1678..2262; writers put 9999-12-31 for "for ever".
            coerce_int96_timestamp_unit="ms",
        )
    except BaseException:
        source.close()
        raise


def group_batches(
    opened: pq.ParquetFile, group: int, columns: Sequence[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of some columns of a row group, with plain types.

    Raises
    ------
    OSError, pyarrow.ArrowException
        If a page is damaged, or a column has other rows than the footer says: of a damaged header of a page
        Arrow gives fewer rows, without an error.
    """
    rows, expected = 0, opened.metadata.row_group(group).num_rows
    try:
        for batch in opened.iter_batches(batch_rows, row_groups=[group], columns=columns, use_threads=False):
            rows += len(batch)
            if rows > expected:
                break
            yield plain_batch(batch)
    except OSError as error:
        if "decrypt" in str(error):
            raise pa.ArrowInvalid("it is encrypted, and pslib takes no keys") from error
        raise
    if rows != expected:
        raise pa.ArrowInvalid(f"expected {counted(expected, 'row')}, as its footer says, got {rows:,}")


def footer_of(source: pa.NativeFile) -> pa.Buffer:
    """Read the end of a Parquet file, with all of its metadata, which `parquet_from` opens like the file.

    Of anything else a part of the end is returned, for which `parquet_from` says what is wrong.
    """
    size = source.size()
    end = source.read_at(min(size, FOOTER_BYTES), max(0, size - FOOTER_BYTES))
    if len(end) >= FOOTER_END.size:
        length = FOOTER_END.size + FOOTER_END.unpack(end[-FOOTER_END.size :])[0]
        if len(end) < length <= size and end.endswith(b"PAR1"):
            end = source.read_at(length, size - length)
    return pa.py_buffer(end)


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """Statistics of a column of numbers in one row group; None if the footer has none."""

    smallest: float | None = None
    largest: float | None = None
    nulls: int | None = None


_NUMBERS = {"BOOLEAN": "?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
"""Formats of values by their physical type."""
_STATISTICS, _NULLS, _LARGEST, _SMALLEST = 12, 3, (5, 1), (6, 2)
"""Numbers of fields in `parquet.thrift`; the second ones of values are of older writers."""
_PATH = re.compile(rb"\x19\x18")
_NEXT_IS_NUMBER = 0x15
_BOOLEANS, _BINARY, _STRUCT = (1, 2), 8, 12
"""Types of Thrift's compact protocol that are no plain number."""


def statistics_in(
    footer: pa.Buffer, types: Mapping[str, str], groups: int
) -> dict[str, list[ChunkStatistics]]:
    """Read the statistics of columns, of each row group: pyarrow ends the process where they are damaged.

    They are hints: no caller relies on them without a look at the values.

    Parameters
    ----------
    footer : pyarrow.Buffer
        From `footer_of`.
    types : mapping of str to str
        Columns outside of structs and lists, and their physical types. The metadata of a chunk has its path,
        a list (field 3) of one text, before a number (field 4).
    groups : int
        Number of row groups. A column with as many finds is kept; values of statistics and key-value
        metadata may look like a path.
    """
    data, found = footer.to_pybytes(), {name: list[ChunkStatistics]() for name in types}
    names = {name.encode(): name for name in types}
    for match in _PATH.finditer(data):
        with suppress(IndexError):
            size, at = _number(data, match.end())
            name = names.get(data[at : at + size])
            if name is not None and data[at + size] == _NEXT_IS_NUMBER:
                found[name].append(_statistics_after(data, at + size + 1, types[name]))
    return {name: told for name, told in found.items() if len(told) == groups}


def _statistics_after(data: bytes, at: int, physical_type: str) -> ChunkStatistics:
    """Read the statistics of a chunk, whose field 4 begins at ``at``; none where they can't be read."""
    with suppress(IndexError, KeyError, TypeError, struct.error):
        kind, (_codec, at) = _NUMBERS[physical_type], _number(data, at)
        for field, value in _fields(data, at, 4):
            if field == _STATISTICS:
                told = dict(_fields(data, value, 0))
                ends = (
                    next((told[one] for one in fields if one in told), None)
                    for fields in (_SMALLEST, _LARGEST)
                )
                low, high = (None if end is None else struct.unpack(kind, end)[0] for end in ends)
                nulls = told.get(_NULLS)
                return ChunkStatistics(low, high, None if nulls is None else nulls >> 1)
    return ChunkStatistics()


def _fields(data: bytes, at: int, number: int) -> Iterator[tuple[int, Any]]:
    """Yield the fields after ``number`` of a struct: unsigned numbers, bytes, and the place of a struct.

    Ends after a struct, and before a field of another type. Before the statistics of a chunk that could be
    key-value metadata alone, which no known writer gives.
    """
    value: Any
    while head := data[at]:
        number, kind = number + (head >> 4), head & 15
        if head < 16:
            return
        at += 1
        if kind in _BOOLEANS:
            value = kind
        elif kind == _BINARY:
            size, at = _number(data, at)
            value, at = data[at : at + size], at + size
        elif kind == _STRUCT:
            value = at
        elif kind in (4, 5, 6):
            value, at = _number(data, at)
        else:
            return
        yield number, value
        if kind == _STRUCT:
            return


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the place after it."""
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


class OpenedAhead:
    """Open files in announced order; threads open those of an object store ahead of use.

    Parameters
    ----------
    open_one : callable
        Opens one file; called by several threads at once.
    """

    def __init__(self, open_one: Callable[[str], pq.ParquetFile]) -> None:
        self._open_one = open_one
        self._later: deque[str] = deque()
        self._waiting: deque[tuple[str, Future[pq.ParquetFile]]] = deque()
        self._threads: ThreadPoolExecutor | None = None

    def expect(self, files: Sequence[str]) -> None:
        """Announce the files to be opened, in order; replaces the previous announcement."""
        self._forget()
        far = [file for file in files if is_far(file)]
        self._later = deque(far if len(far) > 1 else ())

    def open(self, file: str) -> pq.ParquetFile:
        """Return the open file; raises the error of opening it."""
        self._begin()
        if not self._waiting or self._waiting[0][0] != file:
            return self._open_one(file)
        _, opened = self._waiting.popleft()
        self._begin()
        return opened.result()

    def close(self) -> None:
        """Close files opened but not used, and end the threads."""
        self._forget()
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None

    def _begin(self) -> None:
        while self._later and len(self._waiting) < AHEAD:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="opens files ahead")
            file = self._later.popleft()
            self._waiting.append((file, self._threads.submit(self._open_one, file)))

    def _forget(self) -> None:
        self._later.clear()
        for _, opened in self._waiting:
            if not opened.cancel():
                with suppress(OSError, pa.ArrowException):
                    opened.result().close(force=True)
        self._waiting.clear()
