"""Messages to frames and back, with every length checked before memory is taken for it.

A message is a msgpack header and one raw little-endian frame an array; the grammar stands in README.md
beside this file. Decoded arrays are views of the received frames: nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import msgpack
import numpy as np

from pslib.config import Limits
from pslib.errors import ForeignMessageError, LocalProtocolError, RemoteProtocolError
from pslib.protocol.messages import ALL_MESSAGES, ArrayRule, Message, PlainList

__all__ = ["PROTOCOL_VERSION", "Codec", "Envelope"]

PROTOCOL_VERSION = 3

Buffer = bytes | bytearray | memoryview
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_UINT64_END = 1 << 64
_NAME_CHARS_MAX = Limits().name_chars_max


@dataclass(frozen=True, slots=True)
class Envelope:
    """A decoded message and the number that pairs it with its request or reply."""

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


@dataclass(frozen=True, slots=True)
class Codec:
    """Encoder and decoder of one cluster.

    Parameters
    ----------
    cluster_id : str
        Stands in every header; a message of another cluster is refused.
    limits : Limits
        Bounds on headers, frames and messages.
    """

    cluster_id: str
    limits: Limits = Limits()

    def encode(self, request_id: int, message: Message) -> list[Buffer]:
        """Frames of a message; arrays are passed as views (``C``-contiguous ones are not copied).

        Raises
        ------
        LocalProtocolError
            When a value or an array is not what its field allows, or a limit is passed.
        """
        values: list[Any] = []
        descriptions: list[Any] = []
        frames: list[Buffer] = [b""]
        for spec in _LAYOUT[message.kind]:
            value = getattr(message, spec.name)
            if spec.one is not None:
                descriptions.append(self._pack(spec, value, spec.one, frames))
            elif spec.many is not None:
                values.append(list(value))
                for array in value.values():
                    descriptions.append(self._pack(spec, array, spec.many, frames))
            else:
                values.append(value)
        header = [PROTOCOL_VERSION, self.cluster_id, message.kind, request_id, values, descriptions]
        try:
            self._check_plain(message)
            frames[0] = msgpack.packb(header)
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalProtocolError(f"{message.kind}: {error}") from error
        self._check_sizes(frames, LocalProtocolError)
        return frames

    @staticmethod
    def _check_plain(message: Message) -> None:
        """What the other side would refuse is this side's fault, and is found here."""
        for spec in _LAYOUT[message.kind]:
            if spec.plain is not None:
                _plain(spec, getattr(message, spec.name))
            elif spec.many is not None:
                for name in getattr(message, spec.name):
                    _name(name)

    def _pack(self, spec: _Field, array: Any, rule: ArrayRule, frames: list[Buffer]) -> list[Any]:
        if not _fits(array, rule) or array.dtype not in _CODES:
            raise LocalProtocolError(f"field {spec.name}: expected {rule}, got {array.ndim}-d {array.dtype}")
        if array.size:
            frames.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        else:
            frames.append(b"")
        return [_CODES[array.dtype], *array.shape]

    def _check_sizes(
        self, frames: Sequence[Any], error: type[LocalProtocolError] | type[RemoteProtocolError]
    ) -> None:
        limits = self.limits
        sizes = [len(frame) for frame in frames]
        for what, size, limit in (
            ("frames", len(sizes), limits.frames_max),
            ("header bytes", sizes[0] if sizes else 0, limits.header_bytes_max),
            ("bytes in one frame", max(sizes, default=0), limits.frame_bytes_max),
            ("bytes in all frames", sum(sizes), limits.message_bytes_max),
        ):
            if size > limit:
                raise error(f"message of {size} {what}: at most {limit} are allowed; send less at a time")

    def decode(self, frames: Sequence[Buffer]) -> Envelope:
        """Check everything and build the message; arrays are views of ``frames``.

        Raises
        ------
        RemoteProtocolError
            When the bytes are not a message of this protocol version and this cluster.
        """
        if not frames:
            raise RemoteProtocolError("expected a header frame, got nothing")
        self._check_sizes(frames, RemoteProtocolError)
        kind, request_id, values, descriptions = self._header(frames[0])
        if len(descriptions) != len(frames) - 1:
            raise RemoteProtocolError(
                f"header names {len(descriptions)} arrays, {len(frames) - 1} frames came"
            )
        given = [_view(text, frame) for text, frame in zip(descriptions, frames[1:], strict=True)]
        try:
            return Envelope(request_id, _build(kind, values, given))
        except (TypeError, ValueError, IndexError) as error:
            raise RemoteProtocolError(f"{kind}: {error}") from error

    def _header(self, frame: Buffer) -> tuple[str, int, list[Any], list[Any]]:
        try:
            header = msgpack.unpackb(frame, strict_map_key=False, max_array_len=1 << 20, max_map_len=1 << 16)
        except Exception as error:  # msgpack raises ValueError, but also its own and C-level kinds
            raise RemoteProtocolError(f"header is not msgpack: {type(error).__name__}") from error
        if not isinstance(header, list) or len(header) != 6:
            raise RemoteProtocolError("header: expected a list of 6")
        version, cluster_id, kind, request_id, values, descriptions = header
        if type(version) is not int or version != PROTOCOL_VERSION:
            raise ForeignMessageError(
                f"protocol version: expected {PROTOCOL_VERSION}, got {_told(version)}; "
                "install one pslib everywhere"
            )
        if cluster_id != self.cluster_id:
            raise ForeignMessageError(
                f"cluster id: expected {self.cluster_id!r}, got {_told(cluster_id)}; this is another cluster"
            )
        if not isinstance(kind, str) or kind not in _LAYOUT:
            raise RemoteProtocolError(f"message kind: unknown {_told(kind)}")
        if type(request_id) is not int or not 0 <= request_id < _UINT64_END:
            raise RemoteProtocolError("request_id: expected 0..2^64-1")
        if not isinstance(values, list) or not isinstance(descriptions, list):
            raise RemoteProtocolError("header: expected lists of values and of arrays")
        return kind, request_id, values, descriptions


def _told(value: Any) -> str:
    """A received value for an error text: never long, and a deeply nested one is not walked through."""
    return f"{value!r:.80}" if isinstance(value, str | int | float | bytes | None) else type(value).__name__


def _view(description: Any, frame: Buffer) -> np.ndarray[Any, Any]:
    """One frame as an array, after its size has been checked against its description."""
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
    if math.prod(shape) * dtype.itemsize != len(frame):
        raise RemoteProtocolError(f"array {dtype} {shape}: frame has {len(frame)} bytes")
    return np.frombuffer(frame, dtype).reshape(shape)


def _build(kind: str, values: list[Any], given: list[np.ndarray[Any, Any]]) -> Message:
    rest, views = iter(values), iter(given)
    arguments: dict[str, Any] = {}
    for spec in _LAYOUT[kind]:
        if spec.one is not None:
            arguments[spec.name] = _checked(spec.name, next(views, None), spec.one)
        elif spec.many is not None:
            names = next(rest, None)
            if not isinstance(names, list):
                raise TypeError(f"{spec.name}: expected a list of names")
            named = {_name(n): _checked(spec.name, next(views, None), spec.many) for n in names}
            if len(named) != len(names):
                raise TypeError(f"{spec.name}: expected distinct names")
            arguments[spec.name] = named
        else:
            arguments[spec.name] = _plain(spec, next(rest, None))
    if next(views, None) is not None or next(rest, _UINT64_END) is not _UINT64_END:
        raise TypeError("more fields than the message has")
    return ALL_MESSAGES[kind](**arguments)


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > _NAME_CHARS_MAX:
        raise TypeError("array name: expected a short string")
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
    if isinstance(value, str) and len(value) > _NAME_CHARS_MAX:
        raise ValueError(f"{spec.name}: longer than {_NAME_CHARS_MAX} characters")
    return value
