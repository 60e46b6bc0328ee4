"""Encoding of record bodies: messages and notes with named fields, readable by later versions.

It is not the wire encoding, which changes with the protocol version, while a log must outlive it. Fields are
named. A field unknown to this version is refused; a missing field takes its default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from pslib.errors import LogCorruptError, LogForeignError, PslibError
from pslib.update_log.records import Buffer, padding
from pslib.wire.fields import ArrayRule, Message
from pslib.wire.journal import Entry, Note
from pslib.wire.messages import ALL_MESSAGES

NOTE = ""
"""Kind of an entry that is a note, not a message."""
_COUNT_BYTES = 8


class _Kind(NamedTuple):
    """Fields of messages of one kind in a record."""

    cls: type[Message]
    rules: Mapping[str, ArrayRule]
    """Rule of each field of arrays."""
    roles: tuple[tuple[str, str], ...]
    """Name and role ("plain", "array" or "arrays") of each field."""
    names: frozenset[str]
    maps: tuple[str, ...]
    """Fields of named arrays that must be given; without arrays none of them is written."""


def _kind(cls: type[Message]) -> _Kind:
    roles, maps, rules = [], [], {}
    for spec in fields(cls):  # type: ignore[arg-type]
        role = next((role for role in ("array", "arrays") if role in spec.metadata), "plain")
        roles.append((spec.name, role))
        if role != "plain":
            rules[spec.name] = spec.metadata[role]
        if role == "arrays" and spec.default is MISSING and spec.default_factory is MISSING:
            maps.append(spec.name)
    return _Kind(cls, rules, tuple(roles), frozenset(name for name, _role in roles), tuple(maps))


_KINDS = {kind: _kind(cls) for kind, cls in ALL_MESSAGES.items()}
_ANY = tuple(map(np.dtype, ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")))
"""Types of arrays where a field allows all."""
_dtype = lru_cache(64)(np.dtype)


@lru_cache(64)
def _nothing(code: str, *shape: int) -> np.ndarray[Any, Any]:
    """Empty array."""
    return np.empty(shape, code)


def pieces_of(entries: Sequence[Entry]) -> list[Buffer]:
    """Encode a body as contiguous pieces; arrays are passed as views where possible."""
    described: list[Any] = []
    arrays: list[np.ndarray[Any, Any]] = []
    for entry in entries:
        if isinstance(entry, Message):
            described.append(_message(entry, arrays))
        else:
            described.append([NOTE, dict(entry), []])
    header = msgpack.packb(described)
    pieces: list[Buffer] = [len(header).to_bytes(_COUNT_BYTES, "little"), header, bytes(padding(len(header)))]
    for array in arrays:
        pieces.append(array.reshape(-1).view(np.uint8).data)
        pieces.append(bytes(padding(array.nbytes)))
    return [piece for piece in pieces if len(piece)]


def _message(message: Message, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    plain: dict[str, Any] = {}
    described: list[Any] = []
    for name, role in _KINDS[message.kind].roles:
        value = getattr(message, name)
        if role == "plain":
            plain[name] = value
        elif role == "array":
            described.append([name, None, *_added(arrays, value)])
        else:
            described += [[name, key, *_added(arrays, array)] for key, array in value.items()]
    return [message.kind, plain, described]


def _added(arrays: list[np.ndarray[Any, Any]], array: np.ndarray[Any, Any]) -> list[Any]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    arrays.append(little)
    return [little.dtype.str, *little.shape]


def entries_of(body: Buffer, where: str = "a record") -> list[Entry]:
    """Decode the messages and notes of a body; arrays are views of it.

    Raises
    ------
    LogForeignError
        If a newer version wrote entries or fields unknown to this one.
    LogCorruptError
        If these are no entries, or an array is not one of its field, or lies beyond the body.
    """
    try:
        return _entries_of(body, where)
    except PslibError:
        raise
    except Exception as error:  # msgpack has several kinds
        raise not_a_record(where, error) from error


def not_a_record(where: str, error: Exception) -> LogCorruptError:
    """Return the error of a record whose checksum is right and whose content no pslib writes."""
    why = f"{type(error).__name__}: {error}".splitlines()[0]
    return LogCorruptError(f"{where}: expected entries of a log, got others ({why:.200}); load a checkpoint")


def _entries_of(body: Buffer, where: str) -> list[Entry]:
    header_bytes = int.from_bytes(body[:_COUNT_BYTES], "little")
    described = msgpack.unpackb(body[_COUNT_BYTES : _COUNT_BYTES + header_bytes], strict_map_key=False)
    start = _COUNT_BYTES + header_bytes + padding(header_bytes)
    entries: list[Entry] = []
    for kind, plain, about in described:
        if not isinstance(plain, dict):
            raise ValueError(f"expected named fields, got {type(plain).__name__}")
        if about:
            start = _add_arrays(plain, about, body, start, _KINDS[kind].rules if kind in _KINDS else {})
        entries.append(plain if kind == NOTE else _message_of(kind, plain, where))
    if not entries:
        raise ValueError("expected one entry or more, got none")
    return entries


def first_note(read: Callable[[int, int], bytes]) -> Note:
    """First entry of a body if it is a note, reading its header only; else an empty note."""
    header_bytes = int.from_bytes(read(0, _COUNT_BYTES), "little")
    described = msgpack.unpackb(read(_COUNT_BYTES, header_bytes), strict_map_key=False)
    kind, plain, _about = described[0]
    return plain if kind == NOTE else {}


def _add_arrays(
    values: dict[str, Any], about: Sequence[Any], body: Buffer, start: int, rules: Mapping[str, ArrayRule]
) -> int:
    """Set the arrays of an entry's fields; return the offset of the next entry's first array."""
    for name, key, code, *shape in about:
        rule = rules.get(name)
        if rule is not None and not (len(shape) == rule.ndim and _dtype(code) in (rule.dtypes or _ANY)):
            raise ValueError(f"{name}: expected {rule}, got {code} {shape}")
        if min(shape, default=-1) < 0:
            raise ValueError(f"{name}: expected sizes of 0 or more, got {shape}")
        count = shape[0] if len(shape) == 1 else math.prod(shape)
        if count:
            dtype = _dtype(code)
            array = np.frombuffer(body, dtype, count, start)
            if len(shape) != 1:
                array = array.reshape(shape)
            size = count * dtype.itemsize
            start += size + padding(size)
        else:
            array = _nothing(code, *shape)
        if key is None:
            values[name] = array
        else:
            values.setdefault(name, {})[key] = array
    return start


def _message_of(kind: str, values: dict[str, Any], where: str) -> Message:
    known = _KINDS.get(kind)
    if known is None or not values.keys() <= known.names:
        unknown = [f" with {name}" for name in values if known and name not in known.names]
        what = " ".join(f"{kind}{''.join(unknown[:1])}".split())
        raise LogForeignError(
            f"{where}: {what:.160} is not known to this version; start the newer pslib that wrote it"
        )
    for name in known.maps:
        values.setdefault(name, {})
    return known.cls(**values)
