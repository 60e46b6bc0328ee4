"""Codec of messages and frames; every length is checked before memory is taken for it.

A message is a msgpack header, with the small arrays in it, and one raw little-endian frame for each other
array; docs/design/wire.md has the grammar. Decoded arrays are views of the received frames: large ones are
never copied.

This is the definition, in plain Python. `cython_ext.wire.message_writer` and `message_reader` do the same for
the common messages in a tenth of the time; messages that they do not take come here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, get_type_hints

import msgpack
import numpy as np

from cython_ext.wire.message_reader import MessageReader
from cython_ext.wire.message_writer import MessageWriter
from pslib.config import Limits
from pslib.errors import ForeignMessageError, LocalProtocolError, RemoteProtocolError
from pslib.wire.messages import ALL_MESSAGES, ArrayRule, Message, PlainList

__all__ = ["NAME_CHARS_MAX", "PROTOCOL_VERSION", "Codec", "Envelope", "Reply"]

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


class Reply(NamedTuple):
    """Instruction to send frames to a peer."""

    peer: bytes
    frames: list[Buffer]


class Envelope(NamedTuple):
    """Decoded message and the number that pairs it with its request or reply."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    plain: type | None
    one: ArrayRule | None
    many: ArrayRule | None


def _describe(cls: type[Message]) -> tuple[_Field, ...]:
    hints = get_type_hints(cls)
    described = []
    for spec in fields(cls):  # type: ignore[arg-type]
        hint = hints[spec.name]
        plain = hint if hint in (int, str, bool, float) else list if hint == PlainList else dict
        one, many = spec.metadata.get("array"), spec.metadata.get("arrays")
        described.append(_Field(spec.name, None if one or many else plain, one, many))
    return tuple(described)


_LAYOUT = {kind: _describe(cls) for kind, cls in ALL_MESSAGES.items()}


def _fits(array: np.ndarray[Any, Any], rule: ArrayRule) -> bool:
    return array.ndim == rule.ndim and (not rule.dtypes or array.dtype in rule.dtypes)


def _small_start(size: int, used: int) -> int | None:
    """Return the offset of an array of ``size`` bytes among the small ones; None: it has its own frame."""
    start = -(-used // SMALL_ALIGNMENT) * SMALL_ALIGNMENT
    return start if size <= SMALL_BYTES_MAX and start + size <= SMALL_ROOM_BYTES else None


class _Arrays:
    """Arrays of a message being encoded: small ones together, all others as frames of their own."""

    def __init__(self) -> None:
        self.descriptions: list[Any] = []
        self.small = bytearray()
        self.frames: list[Buffer] = []

    def add(self, spec: _Field, array: Any, rule: ArrayRule) -> None:
        if not _fits(array, rule) or array.dtype not in _CODES:
            raise LocalProtocolError(f"field {spec.name}: expected {rule}, got {array.ndim}-d {array.dtype}")
        self.descriptions.append([_CODES[array.dtype], *array.shape])
        start = _small_start(array.nbytes, len(self.small))
        if start is None:
            self.frames.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        elif array.nbytes:
            self.small += bytes(start - len(self.small)) + array.tobytes()


class _Views:
    """Arrays of a received message, in order."""

    def __init__(self, descriptions: list[Any], small: bytes, frames: Sequence[Buffer]) -> None:
        self._descriptions, self._small, self._frames = iter(descriptions), small, iter(frames)
        self._used = 0

    def next(self) -> np.ndarray[Any, Any] | None:
        """Return the next array, its size checked against its description; None: there is no other."""
        description = next(self._descriptions, None)
        if description is None:
            return None
        dtype, shape, size = _described(description)
        start = _small_start(size, self._used)
        if start is None:
            frame = next(self._frames, b"")
            if len(frame) != size:
                raise RemoteProtocolError(f"array {dtype} {shape}: frame has {len(frame)} bytes")
            return np.frombuffer(frame, dtype).reshape(shape)
        if size == 0:
            return np.empty(shape, dtype)
        if start + size > len(self._small):
            raise RemoteProtocolError(f"array {dtype} {shape}: small arrays end at {len(self._small)} bytes")
        self._used = start + size
        return np.frombuffer(self._small, dtype, math.prod(shape), start).reshape(shape)

    def check_end(self) -> None:
        left = sum(1 for _ in self._descriptions), sum(1 for _ in self._frames)
        if any(left):
            raise TypeError(
                f"more arrays than the message has, got {left[0]} more descriptions and {left[1]} more frames"
            )
        if self._used != len(self._small):
            raise TypeError(f"small arrays of {self._used} bytes, {len(self._small)} came")


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
        self._writer: MessageWriter | None
        self._reader: MessageReader | None
        self._writer, self._reader = _compiled(cluster_id, limits)

    def encode(self, request_id: int, message: Message) -> list[Buffer]:
        """Encode a message as frames; large arrays are passed as views, without a copy if C-contiguous.

        Raises
        ------
        LocalProtocolError
            When a value or an array is not what its field allows, or a limit is passed.
        """
        frames = self._writer.encode(request_id, message.kind, message) if self._writer else None
        return self.encode_by_definition(request_id, message) if frames is None else frames

    def encode_by_definition(self, request_id: int, message: Message) -> list[Buffer]:
        """Encode in plain Python, to the same bytes as `encode`."""
        values: list[Any] = []
        arrays = _Arrays()
        for spec in _LAYOUT[message.kind]:
            value = getattr(message, spec.name)
            if spec.one is not None:
                arrays.add(spec, value, spec.one)
            elif spec.many is not None:
                values.append(list(value))
                for array in value.values():
                    arrays.add(spec, array, spec.many)
            else:
                values.append(value)
        about = [PROTOCOL_VERSION, self.cluster_id, message.kind, request_id]
        try:
            self._check_plain(message)
            header = msgpack.packb([*about, values, arrays.descriptions, bytes(arrays.small)])
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalProtocolError(f"{message.kind}: {error}") from error
        frames = [header, *arrays.frames]
        self._check_sizes(frames, len(arrays.descriptions), LocalProtocolError)
        return frames

    @staticmethod
    def _check_plain(message: Message) -> None:
        """Raise LocalProtocolError for values that the receiver would refuse."""
        for spec in _LAYOUT[message.kind]:
            if spec.plain is not None:
                _plain(spec, getattr(message, spec.name))
            elif spec.many is not None:
                for name in getattr(message, spec.name):
                    _name(name)

    def _check_sizes(
        self,
        frames: Sequence[Any],
        arrays: int,
        error: type[LocalProtocolError] | type[RemoteProtocolError],
    ) -> None:
        limits = self.limits
        sizes = [len(frame) for frame in frames]
        for what, size, limit in (
            ("frames", max(len(sizes), 1 + arrays), limits.frames_max),
            ("header bytes", sizes[0] if sizes else 0, limits.header_bytes_max),
            ("bytes in one frame", max(sizes, default=0), limits.frame_bytes_max),
            ("bytes in all frames", sum(sizes), limits.message_bytes_max),
        ):
            if size > limit:
                raise error(f"message of {size} {what}: at most {limit} are allowed; send less at a time")

    def decode(self, frames: Sequence[Buffer]) -> Envelope:
        """Check all frames and build the message; large arrays are views of ``frames``.

        Raises
        ------
        RemoteProtocolError
            When the bytes are not a message of this protocol version and this cluster.
        """
        read = self._reader.decode(frames) if self._reader else None
        return self.decode_by_definition(frames) if read is None else Envelope(*read)

    def decode_by_definition(self, frames: Sequence[Buffer]) -> Envelope:
        """Decode in plain Python, to the same message as `decode`."""
        if not frames:
            raise RemoteProtocolError("expected a header frame, got nothing")
        self._check_sizes(frames, 0, RemoteProtocolError)
        kind, request_id, values, descriptions, small = self._header(frames[0])
        self._check_sizes(frames, len(descriptions), RemoteProtocolError)
        try:
            return Envelope(request_id, _build(kind, values, _Views(descriptions, small, frames[1:])))
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise RemoteProtocolError(f"{kind}: {error}") from error

    def _header(self, frame: Buffer) -> tuple[str, int, list[Any], list[Any], bytes]:
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
        if not isinstance(kind, str) or kind not in _LAYOUT:
            raise RemoteProtocolError(f"message kind: unknown {_told(kind)}")
        if type(request_id) is not int or not 0 <= request_id < _UINT64_END:
            raise RemoteProtocolError("request_id: expected 0..2^64-1")
        if not isinstance(values, list) or not isinstance(descriptions, list) or type(small) is not bytes:
            raise RemoteProtocolError(
                "header: expected lists of values and of arrays, and bytes of small arrays"
            )
        return kind, request_id, values, descriptions, small


def _compiled(cluster_id: str, limits: Limits) -> tuple[MessageWriter, MessageReader] | tuple[None, None]:
    """Return the compiled writer and reader of common messages; None for cluster names they do not take."""
    places = {dtype: place for place, dtype in enumerate(DTYPES.values())}
    kinds = {}
    for kind, layout in _LAYOUT.items():
        rules = [(spec.name, _compiled_rule(spec, places)) for spec in layout]
        if all(rule is not None for _name, rule in rules):
            kinds[kind] = (ALL_MESSAGES[kind], rules)
    bounds = (
        limits.frames_max,
        limits.header_bytes_max,
        limits.frame_bytes_max,
        limits.message_bytes_max,
    )
    numbers = [(name, dtype.num) for name, dtype in DTYPES.items()]
    small = (SMALL_BYTES_MAX, SMALL_ROOM_BYTES)
    try:
        known = (PROTOCOL_VERSION, cluster_id, bounds, small, numbers, kinds)
        return MessageWriter(*known), MessageReader(*known)
    except ValueError:
        return None, None


def _compiled_rule(spec: _Field, places: Mapping[np.dtype[Any], int]) -> Any:
    """Return the rule of a field for `MessageLayouts`; None for nested values, left to the definition."""
    rule = spec.one or spec.many
    if rule is None:
        return None if spec.plain in (dict, list) else spec.plain
    allowed = rule.dtypes or tuple(places)
    return (spec.many is not None, tuple(places[dtype] for dtype in allowed), rule.ndim)


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


def _told(value: Any) -> str:
    """Format a received value for an error text, in bounded length and depth."""
    return f"{value!r:.80}" if isinstance(value, str | int | float | bytes | None) else type(value).__name__


def _described(description: Any) -> tuple[np.dtype[Any], list[int], int]:
    """Return dtype, shape and bytes of an array from its description."""
    if not isinstance(description, list) or not 2 <= len(description) <= 3:
        raise RemoteProtocolError("array: expected [dtype, length] or [dtype, rows, columns]")
    if not isinstance(description[0], str) or description[0] not in DTYPES:
        raise RemoteProtocolError(
            f"array dtype: expected one of {', '.join(DTYPES)}, got {_told(description[0])}"
        )
    shape = description[1:]
    if any(type(length) is not int or length < 0 for length in shape):
        raise RemoteProtocolError("array: expected lengths >= 0")
    dtype = DTYPES[description[0]]
    return dtype, shape, math.prod(shape) * dtype.itemsize


def _build(kind: str, values: list[Any], views: _Views) -> Message:
    rest = iter(values)
    arguments: dict[str, Any] = {}
    for spec in _LAYOUT[kind]:
        if spec.one is not None:
            arguments[spec.name] = _checked(spec.name, views.next(), spec.one)
        elif spec.many is not None:
            names = next(rest, None)
            if not isinstance(names, list):
                raise TypeError(f"{spec.name}: expected a list of names, got {_told(names)}")
            named = {_name(n): _checked(spec.name, views.next(), spec.many) for n in names}
            if len(named) != len(names):
                raise TypeError(f"{spec.name}: expected distinct names")
            arguments[spec.name] = named
        else:
            arguments[spec.name] = _plain(spec, next(rest, None))
    views.check_end()
    if left := list(rest):
        raise TypeError(f"more fields than the message has, got {_told(left[0])}")
    return ALL_MESSAGES[kind](**arguments)


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > NAME_CHARS_MAX:
        raise TypeError(f"array name: expected a short string, got {_told(name)}")
    return name


def _checked(name: str, array: np.ndarray[Any, Any] | None, rule: ArrayRule) -> np.ndarray[Any, Any]:
    if array is None or not _fits(array, rule):
        raise TypeError(f"{name}: expected {rule}")
    return array


def _plain(spec: _Field, value: Any) -> Any:
    if type(value) is not spec.plain:
        expected = spec.plain.__name__ if spec.plain else "an array"
        raise TypeError(f"{spec.name}: expected {expected}, got {type(value).__name__}")
    if isinstance(value, int) and not 0 <= value < _UINT64_END:
        raise ValueError(f"{spec.name}: expected 0..2^64-1")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{spec.name}: expected a finite number, got {value}")
    if isinstance(value, str) and len(value) > NAME_CHARS_MAX:
        raise ValueError(f"{spec.name}: longer than {NAME_CHARS_MAX} characters")
    return value
