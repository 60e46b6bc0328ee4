"""Pages of one column of a row group: read, told by their headers, decompressed.

What is not understood, or damaged, is left to Arrow, which reads it or says in its own words why it can't.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cython_ext.pages import VALUES_MAX, page_headers, plain_texts
from pslib.data.opening import READ_BYTES

__all__ = ["CODECS", "ChunkPages", "Header", "Made", "NotUnderstoodError", "TextPages"]

Made = Callable[[NDArray[Any]], NDArray[Any]]
"""What becomes of an array of integers; as long as that."""

PAGE_BYTES_MAX = 16 << 20
"""Of a page, decompressed; Arrow takes care of larger ones."""

TOGETHER_BYTES = 1 << 19
"""Of pages that are decompressed by one call: each call makes a context, and clears it."""

HEADER_BYTES = 1 << 12
"""Are enough for a header, which may hold a page's smallest and largest string."""

_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_PLAIN, _RLE = 0, 3
_PLACES = (2, 8)
CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd", "GZIP": "gzip"}
"""Those of which it can be told how many bytes came out of them: Arrow's codecs do not say."""
_WIDE = (np.dtype(np.int64), np.dtype(np.uint64))


class NotUnderstoodError(Exception):
    """A page that is left to Arrow."""


class Header(NamedTuple):
    """As `cython_ext.pages.page_headers` gives it."""

    bytes: int
    type: int
    plain_bytes: int
    body_bytes: int
    values: int
    encoding: int
    level_encoding: int
    repeat_encoding: int
    level_bytes: int
    repeat_bytes: int
    compressed: int


class ChunkPages:
    """The pages of one column of a row group, read a megabyte at a time.

    Parameters
    ----------
    source : pyarrow.NativeFile
    chunk : pyarrow.parquet.ColumnChunkMetaData
    dtype : numpy.dtype
        Of the values.
    narrow : bool
        A dictionary may be kept in 4 bytes.
    levels : (bool, bool)
        Whether there are definition and repetition levels.
    made : callable or None
        What the values of a dictionary are to become.

    Attributes
    ----------
    left : int
        Values of the pages to come.
    dictionary : array or None
        What values may be places of.
    """

    plain = True
    """Whether values may stand in a page of data as they are."""

    def __init__(
        self, source: pa.NativeFile, chunk: Any, dtype: np.dtype[Any], narrow: bool,
        levels: tuple[bool, bool], made: Made | None = None,
    ) -> None:  # fmt: skip
        self._defined, self._repeated = levels
        self._made = made
        first, at = chunk.dictionary_page_offset, chunk.data_page_offset
        self._at = first if first is not None and 0 < first < at else at
        self._end = self._at + chunk.total_compressed_size
        if not 0 <= self._at <= self._end:
            raise NotUnderstoodError
        self.left = chunk.num_values
        codec = CODECS[chunk.compression]
        self._codec = None if codec is None else pa.Codec(codec)
        self._source, self.dtype, self._narrow = source, dtype, narrow and dtype in _WIDE
        self._read, self._read_from = memoryview(b""), self._at
        self._found: deque[tuple[Header, Any]] = deque()  # as they were read
        self._ready: deque[tuple[Header, Any]] = deque()  # decompressed
        self.dictionary: NDArray[Any] | None = None

    def next(self) -> tuple[Header, Any]:
        """The next page of data, and its bytes."""
        while True:
            if not self._ready:
                self._decompress_some()
            header, body = self._ready.popleft()
            if header.type == _DICTIONARY:
                self._keep_dictionary(header, body)
            elif header.type in (_DATA, _DATA_2):
                break
            else:
                raise NotUnderstoodError
        places = header.encoding in _PLACES
        fits = self._levels_fit(header) and 0 <= header.values <= min(self.left, VALUES_MAX)
        known = self.dictionary is not None if places else self.plain and header.encoding == _PLAIN
        if not fits or not known:
            raise NotUnderstoodError
        self.left -= header.values
        return header, body

    def dictionary_for(self, header: Header) -> NDArray[Any] | None:
        """What the values of a page are places of; None: they are plain."""
        return self.dictionary if header.encoding in _PLACES else None

    def _levels_fit(self, header: Header) -> bool:
        """Whether levels are runs, where a column has any; writers say anything of those that it has not."""
        if header.type == _DATA:
            alone = header.level_bytes == header.repeat_bytes == -1  # those are said by version 2 alone
            return (
                alone
                and (not self._defined or header.level_encoding == _RLE)
                and (not self._repeated or header.repeat_encoding == _RLE)
            )
        sizes = header.level_bytes, header.repeat_bytes
        alone = (self._defined or not header.level_bytes) and (self._repeated or not header.repeat_bytes)
        return alone and min(sizes) >= 0 and sum(sizes) <= min(header.body_bytes, header.plain_bytes)

    def _find_some(self) -> None:
        """Find pages that are whole in what has been read, or else in what is read next."""
        for _ in range(3):  # in what is there, in a piece, in as much as the next page takes
            size = self._find_whole()
            if self._found:
                return
            size = min(max(READ_BYTES, size), self._end - self._at)
            self._read, self._read_from = memoryview(self._source.read_at(size, self._at)), self._at
        raise NotUnderstoodError

    def _find_whole(self) -> int:
        """Find pages in what has been read; the bytes of the next one, 0 where its header is not there."""
        for numbers in page_headers(self._read, self._at - self._read_from):
            header = Header._make(numbers)
            if not (0 <= header.plain_bytes <= PAGE_BYTES_MAX and 0 <= header.body_bytes <= PAGE_BYTES_MAX):
                break
            start = self._at - self._read_from + header.bytes
            stop = start + header.body_bytes
            if stop > len(self._read):
                return header.bytes + header.body_bytes
            self._found.append((header, self._read[start:stop]))
            self._at = self._read_from + stop
        return 0

    def _decompress_some(self) -> None:
        if not self._found:
            self._find_some()
        header, body = self._found.popleft()
        if not self._is_one_frame(header, body):
            self._ready.append((header, self._plain(header, body)))
            return
        assert self._codec is not None
        some, bodies, size = [header], [body], header.plain_bytes
        while self._found and self._is_one_frame(*self._found[0]):
            header, body = self._found[0]
            if size + header.plain_bytes > TOGETHER_BYTES:
                break
            self._found.popleft()
            some.append(header)
            bodies.append(body)
            size += header.plain_bytes
        plain = memoryview(self._codec.decompress(b"".join(bodies), size))  # frames may follow each other
        for header in some:
            self._ready.append((header, plain[: header.plain_bytes]))
            plain = plain[header.plain_bytes :]

    def _is_one_frame(self, header: Header, body: memoryview) -> bool:
        """Whether a page can be decompressed with others: what comes out of it ends where its header says."""
        zstd = self._codec is not None and self._codec.name == "zstd"
        return zstd and header.type != _DATA_2 and _zstd_size(body) == header.plain_bytes

    def _plain(self, header: Header, body: memoryview) -> Any:
        if self._codec is None:
            return body
        if header.type != _DATA_2:
            return self._decompressed(body, header.plain_bytes)
        levels = header.level_bytes + header.repeat_bytes
        if not self._levels_fit(header):
            raise NotUnderstoodError
        if not header.compressed:
            return body
        if header.plain_bytes == levels:
            return body[:levels]
        values = self._decompressed(body[levels:], header.plain_bytes - levels)
        return b"".join((body[:levels], values))

    def _decompressed(self, body: memoryview, size: int) -> Any:
        """So many bytes; of fewer Arrow's codecs leave the rest as memory was, and do not say so."""
        assert self._codec is not None
        if self._codec.name == "snappy" and _snappy_size(body) != size:
            raise NotUnderstoodError
        if self._codec.name == "gzip" and int.from_bytes(body[-4:], "little") != size:
            raise NotUnderstoodError
        return self._codec.decompress(body, size)

    def _keep_dictionary(self, header: Header, body: Any) -> None:
        fits = header.encoding in (_PLAIN, _PLACES[0]) and 0 <= header.values <= VALUES_MAX
        if self.dictionary is not None or not fits:
            raise NotUnderstoodError
        self.dictionary = self._values_of(body, header.values)

    def _values_of(self, body: Any, count: int) -> NDArray[Any]:
        """What stands in a dictionary's page."""
        if len(memoryview(body)) < count * self.dtype.itemsize:
            raise NotUnderstoodError
        values = np.frombuffer(body, self.dtype, count)
        if not values.flags.aligned:  # a page that was not compressed stands anywhere in what was read
            values = values.copy()
        if self._made is not None:
            return self._made(values)
        if self._narrow and int(np.bitwise_or.reduce(values)) >> 32 == 0:
            return values.astype(np.uint32)
        return values


class TextPages(ChunkPages):
    """Those of a column of strings that are all in its dictionary; the values are places in `texts`.

    Of a dictionary that has a string twice Arrow forgets one, and takes places for those of other strings.
    """

    plain = False

    def __init__(self, source: pa.NativeFile, chunk: Any, arrow: pa.DataType, optional: bool) -> None:
        super().__init__(source, chunk, np.dtype(np.uint32), False, (optional, False))
        self._arrow = arrow
        self.texts: pa.Array | None = None

    def all_coded(self) -> bool:
        """Whether all values are places: where a dictionary grew too large, plain strings follow."""
        at, size = self._at, READ_BYTES
        while at < self._end:
            data = self._source.read_at(min(size, self._end - at), at)
            if size == READ_BYTES:  # the pages that are wanted first
                self._read = memoryview(data)
            found = page_headers(data, 0)
            for header in map(Header._make, found):
                if header.body_bytes < 0 or (header.type != _DICTIONARY and header.encoding not in _PLACES):
                    return False
                at += header.bytes + header.body_bytes
            if not found:
                return False
            size = HEADER_BYTES
        return True

    def _values_of(self, body: Any, count: int) -> NDArray[Any]:
        found = plain_texts(body, count)
        if found is None:
            raise NotUnderstoodError
        self.texts = pa.Array.from_buffers(self._arrow, count, [None, *map(pa.py_buffer, found)])
        return np.arange(count, dtype=np.uint32)


def _snappy_size(body: memoryview) -> int:
    """The length that a block of Snappy begins with: seven bits a byte, the lowest first."""
    size = 0
    for place, byte in enumerate(bytes(body[:5])):
        size |= (byte & 127) << (7 * place)
        if byte < 128:
            return size
    return -1


def _zstd_size(body: memoryview) -> int:
    """The length that a frame of Zstandard says it has (RFC 8878, 3.1.1.1); -1 where it does not say so."""
    start = bytes(body[:14])
    if start[:4] != b"\x28\xb5\x2f\xfd" or len(start) < 14:
        return -1
    flags = start[4]
    in_one = flags >> 5 & 1
    size_bytes = (in_one, 2, 4, 8)[flags >> 6]
    at = 5 + (1 - in_one) + (0, 1, 2, 4)[flags & 3]
    size = int.from_bytes(start[at : at + size_bytes], "little")
    return size + 256 * (size_bytes == 2) if size_bytes and at + size_bytes <= 14 else -1
