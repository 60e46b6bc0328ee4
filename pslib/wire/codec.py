"""Codec of messages and frames; every length is checked before memory is taken for it.

A message is a msgpack header, with the small arrays in it, and one raw little-endian frame for each other
array; docs/design/wire.md has the grammar. Decoded arrays are views of the received frames: large ones are
never copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, get_type_hints

import msgpack
import numpy as np

from pslib.config import Limits
from pslib.errors import ForeignMessageError, LocalProtocolError, RemoteProtocolError
from pslib.wire.fields import ArrayRule, Message, PlainList
from pslib.wire.messages import ALL_MESSAGES

PROTOCOL_VERSION = 6
SMALL_BYTES_MAX = 8192
"""Largest array in the header: a frame of its own costs both ends some 5 us together, a copy of 8 KiB less
than one.
"""
SMALL_ROOM_BYTES = 1 << 16
"""Total bytes of all arrays in one header."""
SMALL_ALIGNMENT = 8

Buffer = bytes | bytearray | memoryview
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_UINT64_END = 1 << 64
_LIMITS = Limits()
NAME_CHARS_MAX = 4096
"""Longest name or text in a message: names are identifiers, and 4096 is the limit of paths on Linux."""

_Array = np.ndarray[Any, Any]
_Refusal = type[LocalProtocolError] | type[RemoteProtocolError]


class Reply(NamedTuple):
    """Instruction to send frames to a peer."""

    peer: bytes
    frames: list[Buffer]


class Envelope(NamedTuple):
    """Decoded message and the number that pairs it with its request or reply."""

    request_id: int
    message: Message


# --- arrays of a message: small ones in the header, all others in frames of their own -----------------------


def _small_start(size: int, used: int) -> int | None:
    """Return the offset of an array of ``size`` bytes among the small ones; None: it has its own frame."""
    start = -(-used // SMALL_ALIGNMENT) * SMALL_ALIGNMENT
    return start if size <= SMALL_BYTES_MAX and start + size <= SMALL_ROOM_BYTES else None


class _ArrayWriter:
    """Arrays of a message being encoded."""

    def __init__(self) -> None:
        self.descriptions: list[list[Any]] = []
        self.small = bytearray()
        self.frames: list[Buffer] = []

    def add(self, array: _Array) -> None:
        """Add an array: to the small ones, or as a frame that is a view of it."""
        self.descriptions.append([_CODES[array.dtype], *array.shape])
        start = _small_start(array.nbytes, len(self.small))
        if start is None:
            self.frames.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        elif array.nbytes:
            self.small += bytes(start - len(self.small)) + array.tobytes()


class _ArrayReader:
    """Arrays of a received message, in order."""

    def __init__(self, descriptions: list[Any], small: bytes, frames: Sequence[Buffer]) -> None:
        self._descriptions, self._frames = iter(descriptions), iter(frames)
        self._small, self._used = small, 0

    def next(self) -> _Array | None:
        """Return the next array, its size checked against its description; None when there is no other."""
        description = next(self._descriptions, None)
        if description is None:
            return None
        dtype, shape, size = _described(description)
        start = _small_start(size, self._used)
        if start is None:
            frame = next(self._frames, b"")
            if len(frame) != size:
                raise RemoteProtocolError(f"array {dtype} {shape}: frame has {len(frame)} bytes")
            return np.ndarray(shape, dtype, frame)
        if size == 0:
            return np.empty(shape, dtype)
        if start + size > len(self._small):
            raise RemoteProtocolError(f"array {dtype} {shape}: small arrays end at {len(self._small)} bytes")
        self._used = start + size
        return np.ndarray(shape, dtype, self._small, start)

    def check_end(self) -> None:
        """Raise TypeError when there is more than the message has."""
        descriptions, frames = len(list(self._descriptions)), len(list(self._frames))
        if descriptions or frames:
            raise TypeError(
                "more arrays than the message has, "
                f"got {descriptions} more descriptions and {frames} more frames"
            )
        if self._used != len(self._small):
            raise TypeError(f"small arrays of {self._used} bytes, {len(self._small)} came")


def _described(description: Any) -> tuple[np.dtype[Any], list[int], int]:
    """Return dtype, shape and number of bytes of an array from its description."""
    if not isinstance(description, list) or not 2 <= len(description) <= 3:
        raise RemoteProtocolError("array: expected [dtype, length] or [dtype, rows, columns]")
    code, *shape = description
    dtype = DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise RemoteProtocolError(f"array dtype: expected one of {', '.join(DTYPES)}, got {_told(code)}")
    size = dtype.itemsize
    for length in shape:
        if type(length) is not int or length < 0:
            raise RemoteProtocolError("array: expected lengths >= 0")
        size *= length
    return dtype, shape, size


def _told(value: Any) -> str:
    """Format a received value for an error text, in bounded length and depth."""
    return f"{value!r:.80}" if isinstance(value, str | int | float | bytes | None) else type(value).__name__


# --- fields of a message: the same check before a value is sent and after it came ---------------------------


@dataclass(frozen=True, slots=True)
class _PlainField:
    name: str
    type: type

    def write(self, value: Any, values: list[Any], arrays: _ArrayWriter) -> None:
        values.append(self.checked(value))

    def read(self, values: Iterator[Any], arrays: _ArrayReader) -> Any:
        return self.checked(next(values, None))

    def checked(self, value: Any) -> Any:
        """Return the value; raise TypeError or ValueError when the field does not allow it."""
        kind = type(value)
        if kind is not self.type:
            raise TypeError(f"{self.name}: expected {self.type.__name__}, got {kind.__name__}")
        if kind is int:
            if not 0 <= value < _UINT64_END:
                raise ValueError(f"{self.name}: expected 0..2^64-1, got {value}")
        elif kind is float:
            if not math.isfinite(value):
                raise ValueError(f"{self.name}: expected a finite number, got {value}")
        elif kind is str and len(value) > NAME_CHARS_MAX:
            raise ValueError(f"{self.name}: longer than {NAME_CHARS_MAX} characters")
        return value


@dataclass(frozen=True, slots=True)
class _ArrayField:
    name: str
    rule: ArrayRule
    dtypes: frozenset[np.dtype[Any]]

    def write(self, value: Any, values: list[Any], arrays: _ArrayWriter) -> None:
        arrays.add(self.checked(value))

    def read(self, values: Iterator[Any], arrays: _ArrayReader) -> _Array:
        return self.checked(arrays.next())

    def checked(self, array: Any) -> _Array:
        """Return the array; raise TypeError when the field does not allow it."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{self.name}: expected {self.rule}, got {_told(array)}")
        if array.ndim != self.rule.ndim or array.dtype not in self.dtypes:
            raise TypeError(f"{self.name}: expected {self.rule}, got {array.ndim}-d {array.dtype}")
        return array


@dataclass(frozen=True, slots=True)
class _NamedArraysField:
    name: str
    array: _ArrayField

    def write(self, value: Mapping[str, _Array], values: list[Any], arrays: _ArrayWriter) -> None:
        values.append([_name(name) for name in value])
        for array in value.values():
            arrays.add(self.array.checked(array))

    def read(self, values: Iterator[Any], arrays: _ArrayReader) -> dict[str, _Array]:
        names = next(values, None)
        if not isinstance(names, list):
            raise TypeError(f"{self.name}: expected a list of names, got {_told(names)}")
        named = {_name(name): self.array.checked(arrays.next()) for name in names}
        if len(named) != len(names):
            raise TypeError(f"{self.name}: expected distinct names")
        return named


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > NAME_CHARS_MAX:
        raise TypeError(f"array name: expected a short string, got {_told(name)}")
    return name


_Field = _PlainField | _ArrayField | _NamedArraysField


def _fields_of(cls: type[Message]) -> Iterator[_Field]:
    hints = get_type_hints(cls)
    for spec in fields(cls):  # type: ignore[arg-type]
        rule = spec.metadata.get("array") or spec.metadata.get("arrays")
        if rule:
            one = _ArrayField(spec.name, rule, frozenset(rule.dtypes or _CODES))
            yield one if "array" in spec.metadata else _NamedArraysField(spec.name, one)
        else:
            hint = hints[spec.name]
            plain = hint if hint in (int, str, bool, float) else list if hint == PlainList else dict
            yield _PlainField(spec.name, plain)


_FIELDS = {kind: tuple(_fields_of(cls)) for kind, cls in ALL_MESSAGES.items()}
_REQUEST_ID = _PlainField("request_id", int)


# --- messages -----------------------------------------------------------------------------------------------


class Codec:
    """Encoder and decoder of one cluster.

    Parameters
    ----------
    cluster_id : str
        Written to every header; a message of another cluster is refused.
    limits : Limits
        Bounds on headers, frames and messages.
    """

    def __init__(self, cluster_id: str, limits: Limits = _LIMITS) -> None:
        self.cluster_id, self.limits = cluster_id, limits

    def encode(self, request_id: int, message: Message) -> list[Buffer]:
        """Encode a message as frames; large arrays are passed as views, without a copy if C-contiguous.

        Raises
        ------
        LocalProtocolError
            When a value or an array is not what its field allows, or a limit is passed.
        """
        kind = message.kind
        values: list[Any] = []
        arrays = _ArrayWriter()
        header = [PROTOCOL_VERSION, self.cluster_id, kind, request_id, values, arrays.descriptions]
        try:
            _REQUEST_ID.checked(request_id)
            for field in _FIELDS[kind]:
                field.write(getattr(message, field.name), values, arrays)
            packed = msgpack.packb([*header, bytes(arrays.small)])
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalProtocolError(f"{kind}: {error}") from error
        frames = [packed, *arrays.frames]
        self._check_frames(frames, LocalProtocolError)
        self._check_arrays(len(arrays.descriptions), LocalProtocolError)
        return frames

    def decode(self, frames: Sequence[Buffer]) -> Envelope:
        """Check all frames and build the message; large arrays are views of ``frames``.

        Raises
        ------
        RemoteProtocolError
            When the bytes are not a message of this protocol version and this cluster.
        """
        if not frames:
            raise RemoteProtocolError("expected a header frame, got nothing")
        self._check_frames(frames, RemoteProtocolError)
        kind, request_id, values, descriptions, small = self._header(frames[0])
        self._check_arrays(len(descriptions), RemoteProtocolError)
        arrays, left = _ArrayReader(descriptions, small, frames[1:]), iter(values)
        try:
            _REQUEST_ID.checked(request_id)
            message = ALL_MESSAGES[kind](*[field.read(left, arrays) for field in _FIELDS[kind]])
            arrays.check_end()
            if more := list(left):
                raise TypeError(f"more fields than the message has, got {_told(more[0])}")
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise RemoteProtocolError(f"{kind}: {error}") from error
        return Envelope(request_id, message)

    def _check_frames(self, frames: Sequence[Buffer], error: _Refusal) -> None:
        limits, sizes = self.limits, [len(frame) for frame in frames]
        _check_limit("frames", len(sizes), limits.frames_max, error)
        _check_limit("header bytes", sizes[0], limits.header_bytes_max, error)
        _check_limit("bytes in one frame", max(sizes), limits.frame_bytes_max, error)
        _check_limit("bytes in all frames", sum(sizes), limits.message_bytes_max, error)

    def _check_arrays(self, count: int, error: _Refusal) -> None:
        """Bound the number of arrays as if each had a frame of its own."""
        _check_limit("frames", 1 + count, self.limits.frames_max, error)

    def _header(self, frame: Buffer) -> tuple[str, Any, list[Any], list[Any], bytes]:
        try:
            header = msgpack.unpackb(frame, strict_map_key=False, max_array_len=1 << 20, max_map_len=1 << 16)
        except Exception as error:  # msgpack raises ValueError, but also its own and C-level kinds
            raise RemoteProtocolError(f"header is not msgpack: {type(error).__name__}") from error
        _check_version(header)
        _version, cluster_id, kind, request_id, values, descriptions, small = header
        if cluster_id != self.cluster_id:
            raise ForeignMessageError(
                f"cluster id: expected {self.cluster_id!r}, got {_told(cluster_id)}; this is another cluster"
            )
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise RemoteProtocolError(f"message kind: unknown {_told(kind)}")
        if not isinstance(values, list) or not isinstance(descriptions, list) or type(small) is not bytes:
            raise RemoteProtocolError(
                "header: expected lists of values and of arrays, and bytes of small arrays"
            )
        return kind, request_id, values, descriptions, small


def _check_limit(what: str, size: int, limit: int, error: _Refusal) -> None:
    if size > limit:
        raise error(f"message of {size} {what}: at most {limit} are allowed; send less at a time")


def _check_version(header: Any) -> None:
    """Check that a header has this version; the version precedes the length, which it decides."""
    if not isinstance(header, list) or not header:
        raise RemoteProtocolError("header: expected a list")
    version = header[0]
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise ForeignMessageError(
            f"protocol version: expected {PROTOCOL_VERSION}, got {_told(version)}; "
            "install one pslib everywhere"
        )
    if len(header) != 7:
        raise RemoteProtocolError(f"header: expected a list of 7, got {len(header)}")
