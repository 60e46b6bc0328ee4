"""A text file as its text, also where it is packed: gzip, bzip2, xz, zstd, told by its first bytes."""

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

__all__ = ["Damaged", "Unpacked", "opened"]

PACKED_BYTES = 64 << 10
"""Read at once of a packed file."""

_BZIP2_BLOCKS = b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"
"""What comes after the level: a block, or the end of a file that holds nothing."""
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
"""What a packed file begins with, its kind, and what reads it."""

_NO_TEXT = {
    b"PAR1": "this is a Parquet file already; train from it as it is",
    b"PK\x03\x04": "expected text, got a zip archive; unpack it",
    b"\xff\xfe": "expected UTF-8, got UTF-16; rewrite it, as by iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "expected UTF-8, got UTF-16; rewrite it, as by iconv -f UTF-16 -t UTF-8",
}
"""What other files begin with, and what to say of them."""


class Damaged(Exception):  # noqa: N818 - becomes a DataError that names the file
    """Packed data ends too early or makes no sense."""


class Unpacked:
    """Reads a packed file; says so where it is damaged."""

    def __init__(self, kind: str, file: Any) -> None:
        self._kind, self._file = kind, file

    def read(self, size: int) -> bytes:
        """As of any file."""
        try:
            return bytes(self._file.read(size))
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the data's
                raise
            raise Damaged(f"the {self._kind} data is cut or damaged ({error})") from error


class _Streams(io.RawIOBase):
    """One stream after another; BZ2File and LZMAFile end where the beginning of a further one is damaged."""

    def __init__(self, file: IO[bytes], stream: Callable[[], Any], padding: int) -> None:
        self._file, self._new, self._padding = file, stream, padding
        self._stream = stream()

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of any file; EOFError, and what the decompressor raises, where the data is damaged."""
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
        """What follows a stream, without the zeros that may stand between two."""
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
    """The last bytes of a file."""
    with source.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        return file.read()


@contextmanager
def opened(source: Path) -> Iterator[IO[bytes] | Unpacked]:
    """A file whose ``read`` gives text, until the end of the block.

    Parameters
    ----------
    source : Path
        Plain text, gzip, bzip2, xz or zstd, told by its first bytes.

    Raises
    ------
    DataError
        When it is no text: Parquet, a zip archive, UTF-16.
    Damaged
        From ``read``, where packed data is cut or damaged, or something else follows it.
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
