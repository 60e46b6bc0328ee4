"""Transparent decompression of text files: gzip, bzip2, xz or zstd, detected by the first bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from pslib.errors import DataError
from pslib.text import counted

PACKED_BYTES = 64 << 10
"""Bytes read at once from a compressed file."""

_BZIP2_BLOCKS = b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"
"""Bytes after the level: a block, or the end of an empty file."""
_BZIP2 = [b"BZh%d%b" % (level, block) for level in range(1, 10) for block in _BZIP2_BLOCKS]
_PACKED: dict[bytes, tuple[str, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    **dict.fromkeys(_BZIP2, ("bzip2", lambda file: _streams(file, bz2.BZ2Decompressor))),
    b"\xfd7zXZ\0": (
        "xz",
        lambda file: _streams(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), padding=4),
    ),
    b"\x28\xb5\x2f\xfd": ("zstd", lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")),
}
"""First bytes of compressed files, with format and reader."""

_NO_TEXT = {
    b"PAR1": "this is a Parquet file already; train from it as it is",
    b"PK\x03\x04": "expected text, got a zip archive; unpack it",
    b"\xff\xfe": "expected UTF-8, got UTF-16; rewrite it, as by iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "expected UTF-8, got UTF-16; rewrite it, as by iconv -f UTF-16 -t UTF-8",
}
"""First bytes of unsupported files, with an error text."""


class Damaged(Exception):  # noqa: N818 - becomes a DataError that names the file
    """Raised for truncated or invalid compressed data."""


class Unpacked:
    """Reader of a compressed file that reports damage."""

    def __init__(self, kind: str, file: Any) -> None:
        self._kind, self._file = kind, file

    def read(self, size: int) -> bytes:
        """Read as from any file."""
        try:
            return bytes(self._file.read(size))
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the data
                raise
            raise Damaged(f"the {self._kind} data is cut or damaged ({error})") from error


class _Streams(io.RawIOBase):
    """Concatenated streams; BZ2File and LZMAFile end silently at a later stream with a damaged start."""

    def __init__(self, file: IO[bytes], stream: Callable[[], Any], padding: int) -> None:
        self._file, self._new, self._padding = file, stream, padding
        self._stream = stream()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as from any file; raises EOFError, or the decompressor's error, for damaged data."""
        text = b""
        while not text:
            packed = b""
            if self._stream.eof:
                packed = self._after()
                if not packed:
                    return 0
                self._stream = self._new()
            elif self._stream.needs_input:
                packed = self._file.read(PACKED_BYTES)
                if not packed:
                    raise EOFError("it ends within a stream")
            text = self._stream.decompress(packed, len(buffer))
        buffer[: len(text)] = text
        return len(text)

    def _after(self) -> bytes:
        """Bytes after a stream, without the zero padding allowed between two streams."""
        packed, zeros = self._stream.unused_data or self._file.read(PACKED_BYTES), 0
        while self._padding and packed.startswith(b"\0"):
            rest = packed.lstrip(b"\0")
            zeros += len(packed) - len(rest)
            packed = rest or self._file.read(PACKED_BYTES)
        if zeros and zeros % self._padding:
            raise EOFError(f"{counted(zeros, 'zero byte')} after a stream, no multiple of {self._padding}")
        return bytes(packed)


def _streams(file: IO[bytes], stream: Callable[[], Any], padding: int = 0) -> io.BufferedReader:
    return io.BufferedReader(_Streams(file, stream, padding))


def _end_of(source: Path, size: int) -> bytes:
    """Last bytes of a file."""
    with source.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        return file.read()


@contextmanager
def opened(source: Path) -> Iterator[IO[bytes] | Unpacked]:
    """Open a file whose ``read`` returns text, until the end of the ``with`` block.

    Parameters
    ----------
    source : Path
        Plain text, gzip, bzip2, xz or zstd, detected by its first bytes.

    Raises
    ------
    DataError
        If it is not text: Parquet, a zip archive, UTF-16.
    Damaged
        From ``read``, if compressed data is truncated, damaged or followed by other bytes.
    OSError
    """
    with source.open("rb") as file:
        start = file.read(10)
        file.seek(0)
        for first, said in _NO_TEXT.items():
            if start.startswith(first) and (first != b"PAR1" or _end_of(source, 4) == first):
                raise DataError(f"{source}: {said}")
        for first, (kind, reader) in _PACKED.items():
            if start.startswith(first):
                with reader(file) as unpacked:
                    yield Unpacked(kind, unpacked)
                return
        yield file
