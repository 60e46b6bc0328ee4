"""Log format: segments of numbered, checksummed records. Pure functions on bytes, without files.

docs/design/log.md has the grammar. This module does not interpret record bodies.

A record's ``synced`` is the number below which all records were durable when it was written. It classifies
damage after a crash. If an intact later record shows that the damaged one was durable, the log is corrupt.
Otherwise the damage is a torn tail that was never acknowledged, and is cut off.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cython_ext.wire.checksums import crc32
from pslib.errors import LogCorruptError, LogForeignError

FORMAT_VERSION = 1
MAGIC = b"pslibLOG"
_START = struct.Struct("<8sIIQQII")
"""magic, format version, bytes of ``about``, first number, synced, CRC-32 of all of it, 0; then ``about``."""
MARK = b"psR\xa7"
_HEAD = struct.Struct("<4sIQQQQII")
"""mark, CRC-32 of the rest of the head, bytes of the body, number, synced, subject, kind, body's CRC-32."""
HEAD_BYTES = _HEAD.size
_AFTER_CRC = 8
ALIGNMENT = 8
ABOUT_BYTES_MAX = 1 << 16

Buffer = bytes | bytearray | memoryview
Read = Callable[[int, int], Buffer]
"""``read(start, size)``: bytes of one segment, fewer at its end."""


HEADS_BYTES = 16 << 10
"""Bytes read at once when only heads are read, to skip long bodies."""


class Ahead:
    """Read a segment in pieces, for sequential access.

    Parameters
    ----------
    read : callable
        Read function of the segment.
    piece_bytes : int
        Bytes per read, or more if more are requested.
    """

    def __init__(self, read: Read, piece_bytes: int) -> None:
        self._read, self._piece_bytes = read, piece_bytes
        self._piece, self._first = memoryview(b""), 0

    def __call__(self, start: int, size: int) -> memoryview:
        """Bytes of the segment, fewer at its end; not modified later."""
        place = start - self._first
        if place < 0 or place + size > len(self._piece):
            self._piece = memoryview(self._read(start, max(size, self._piece_bytes)))
            self._first, place = start, 0
        return self._piece[place : place + size]


class Damage(Exception):  # noqa: N818  it is not an error yet: perhaps a torn tail
    """Raised for bytes that are not a complete record."""


class Head(NamedTuple):
    """Head of a record, before its body."""

    length: int
    number: int
    synced: int
    """All records below this number were durable when this one was written."""
    subject: int
    kind: int
    crc: int

    @property
    def size(self) -> int:
        """Bytes of the whole record in its file."""
        return HEAD_BYTES + self.length + padding(self.length)


@dataclass(frozen=True, slots=True)
class Record:
    """Record: its number in the log, its kind, its subject, and its body."""

    number: int
    kind: int
    subject: int
    body: Buffer


def padding(length: int) -> int:
    """Zero bytes after a body, so that the next record, and arrays in it, are aligned."""
    return -length % ALIGNMENT


def record_pieces(
    number: int, synced: int, kind: int, subject: int, body: Sequence[Buffer]
) -> tuple[list[Buffer], int]:
    """Encode a record; return its pieces in order and their total size."""
    crc = length = 0
    for piece in body:
        crc = crc32(piece, crc)
        length += len(piece)
    head = bytearray(_HEAD.pack(MARK, 0, length, number, synced, subject, kind, crc))
    struct.pack_into("<I", head, 4, crc32(memoryview(head)[_AFTER_CRC:]))
    pad = padding(length)
    return [bytes(head), *body, *([bytes(pad)] if pad else [])], HEAD_BYTES + length + pad


def head_at(read: Read, start: int, size: int) -> Head:
    """Decode the head of the record at ``start`` of a segment of ``size`` bytes.

    Raises
    ------
    Damage
        If there is no complete record; its body is not checked.
    """
    head = _sound_head(read(start, HEAD_BYTES))
    if head is None:
        raise Damage("its head does not fit its checksum")
    if start + head.size > size:
        raise Damage(f"it has {head.length} bytes and the file ends")
    return head


def body_at(read: Read, start: int, head: Head) -> memoryview:
    """Read the body of the record at ``start`` and verify its checksum.

    Raises
    ------
    Damage
        If the checksum does not match.
    """
    found = memoryview(read(start + HEAD_BYTES, head.length + padding(head.length)))
    body = found[: head.length]
    if crc32(body) != head.crc or any(found[head.length :]):
        raise Damage("its body does not fit its checksum")
    return body


def _sound_head(data: Buffer) -> Head | None:
    if len(data) < HEAD_BYTES:
        return None
    mark, crc, *values = _HEAD.unpack(data)
    if mark != MARK or crc != crc32(data[_AFTER_CRC:]):
        return None
    return Head._make(values)


def latest_claim(data: bytes) -> int:
    """Highest ``synced`` of all records that begin anywhere in ``data``; 0 if there is none."""
    highest, place = 0, data.find(MARK)
    while place >= 0:
        head = _sound_head(data[place : place + HEAD_BYTES])
        highest = max(highest, head.synced if head else 0)
        place = data.find(MARK, place + 1)
    return highest


def segment_start(first: int, synced: int, about: bytes) -> bytes:
    """Encode the start of a segment: the number of its first record, and the identity of the log."""
    assert len(about) <= ABOUT_BYTES_MAX
    start = bytearray(_START.pack(MAGIC, FORMAT_VERSION, len(about), first, synced, 0, 0) + about)
    start += bytes(padding(len(start)))
    struct.pack_into("<I", start, _START.size - 8, crc32(start))
    return bytes(start)


def start_of_segment(read: Read, name: str) -> tuple[int, int, bytes, int]:
    """First number, ``synced``, ``about`` and the offset of the first record of a segment.

    Raises
    ------
    Damage
        If it does not begin with a valid segment start.
    LogForeignError
        If it has a newer format.
    """
    data = bytes(read(0, _START.size))
    if len(data) < _START.size or not data.startswith(MAGIC):
        raise Damage("it does not begin as a log does")
    _magic, version, about_bytes, first, synced, crc, _zero = _START.unpack(data)
    if version > FORMAT_VERSION:
        raise LogForeignError(
            f"{name}: expected a log of format {FORMAT_VERSION} or older, got format {version}; "
            "start a newer pslib, or another folder"
        )
    if about_bytes > ABOUT_BYTES_MAX:
        raise Damage("its beginning does not fit its checksum")
    whole = bytearray(read(0, _START.size + about_bytes + padding(about_bytes)))
    whole[_START.size - 8 : _START.size - 4] = bytes(4)
    if crc32(whole) != crc:
        raise Damage("its beginning does not fit its checksum")
    return first, synced, bytes(whole[_START.size : _START.size + about_bytes]), len(whole)


def corrupt(name: str, offset: int, why: str) -> LogCorruptError:
    """Error for damage that is not a torn tail."""
    return LogCorruptError(
        f"{name}: damaged at byte {offset}: {why}; what follows had been acknowledged, so nothing is cut: "
        "restore the file, or go back to a checkpoint in another folder"
    )
