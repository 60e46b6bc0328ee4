"""Transparent decompression of text files: gzip, bzip2, xz, lzma, zstd or LZ4, detected by the first bytes.

A file that is no text, or has none packed in it, is refused by name.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
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
_ZSTD = b"\x28\xb5\x2f\xfd"
_PACKED: dict[bytes, tuple[str, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    **dict.fromkeys(_BZIP2, ("bzip2", lambda file: _streams(file, bz2.BZ2Decompressor))),
    b"\xfd7zXZ\0": (
        "xz",
        lambda file: _streams(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), padding=4),
    ),
    b"]\0\0": ("lzma", lambda file: _streams(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE))),
    _ZSTD: ("zstd", lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")),
    b"\x04\x22\x4d\x18": ("lz4", lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "lz4")),
}
"""First bytes of compressed files, with format and reader."""

_SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18(....)", re.DOTALL)
"""Head of a frame that readers of zstd and LZ4 skip, with its size; pzstd begins with one."""

_HEAD_BYTES = 512
"""Bytes that say what a file is: those of a tar archive's first header."""

_NO_TEXT = {
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "a zip archive",
    b"PK\x07\x08": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x1f\x9d": "what compress has packed",
    b"LZIP\x01": "what lzip has packed",
    b"\x89LZO\0": "what lzop has packed",
    b"\x02\x21\x4c\x18": "LZ4 of the legacy format",
    b"\xff\x06\0\0sNaPpY": "what Snappy has packed",
}
"""First bytes of what must be unpacked."""
_OTHER = {
    b"Obj\x01": "Avro",
    b"ARROW1\0\0": "Arrow IPC",
    b"ORC": "ORC",
    b"\x89HDF\r\n\x1a\n": "HDF5",
    b"SQLite format 3\0": "SQLite",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "a document of Office",
}
"""First bytes of other formats, in which a zero byte comes soon."""


class Damaged(Exception):  # noqa: N818 - becomes a DataError that names the file
    """Raised for truncated or invalid compressed data."""


class Unpacked:
    """Reader of a compressed file that reports damage.

    Attributes
    ----------
    head : bytes
        The first bytes, which `read` gives as well.
    """

    def __init__(self, kind: str, file: Any) -> None:
        self._kind, self._file = kind, file
        self.head = self._before = self._read(_HEAD_BYTES)

    def read(self, size: int) -> bytes:
        """Read as from any file."""
        before, self._before = self._before[:size], self._before[size:]
        return before + self._read(size - len(before))

    def _read(self, size: int) -> bytes:
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


def _no_text(head: bytes, end: bytes = b"") -> str | None:
    """Say what a file is that is no text, by its first and last bytes, and what to do; None for text."""
    if head.startswith(b"PAR1") and (end == b"PAR1" or b"\0" in head):
        return "this is a Parquet file already; train from it as it is"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "expected UTF-8, got UTF-16; rewrite it, as by iconv -f UTF-16 -t UTF-8"
    if packed := next((what for first, what in _NO_TEXT.items() if head.startswith(first)), None):
        return f"expected text, got {packed}; unpack it"
    if _is_tar(head):
        return "expected text, got a tar archive; unpack it"
    other = next((what for first, what in _OTHER.items() if head.startswith(first) and b"\0" in head), None)
    return None if other is None else f"expected text, got {other}; write it as text or Parquet"


def _is_tar(head: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _packed_as(head: bytes) -> tuple[str, Callable[[IO[bytes]], Any]] | None:
    return next((how for first, how in _PACKED.items() if head.startswith(first)), None)


def _after_skipped(file: IO[bytes]) -> bytes:
    """First bytes of a file after frames that are skipped."""
    at, head = 0, file.read(_HEAD_BYTES)
    while frame := _SKIPPED.match(head):
        at += frame.end() + int.from_bytes(frame[1], "little")
        file.seek(at)
        head = file.read(_HEAD_BYTES) or _ZSTD
    file.seek(0)
    return head


@contextmanager
def opened(source: Path) -> Iterator[IO[bytes] | Unpacked]:
    """Open a file whose ``read`` returns text, until the end of the ``with`` block.

    Parameters
    ----------
    source : Path
        Plain text, gzip, bzip2, xz, lzma, zstd or LZ4, detected by its first bytes.

    Raises
    ------
    DataError
        If it is not text, or what is packed in it is not: Parquet, an archive, UTF-16, text packed twice.
    Damaged
        Also from ``read``, if compressed data is truncated, damaged or followed by other bytes.
    OSError
    """
    with source.open("rb") as file:
        head = _after_skipped(file)
        end = _end_of(source, 4) if head.startswith(b"PAR1") else b""
        if said := _no_text(head, end):
            raise DataError(f"{source}: {said}")
        packed = _packed_as(head)
        if packed is None:
            yield file
            return
        kind, reader = packed
        with reader(file) as stream:
            unpacked = Unpacked(kind, stream)
            twice = _packed_as(unpacked.head)
            said = f"expected text, got {twice[0]}; unpack it" if twice else _no_text(unpacked.head)
            if said:
                raise DataError(f"{source}: in {kind}: {said}")
            yield unpacked
