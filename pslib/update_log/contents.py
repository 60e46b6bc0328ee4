"""What stands in a record's body: messages and notes, by name, so that later versions can read them.

Not the wire's encoding: that changes with the protocol's version, and a log must outlive it. Fields are
named; one that this version does not have is refused, one that is missing has its default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from typing import Any

import msgpack
import numpy as np

from pslib.errors import LogForeignError
from pslib.protocol.fields import Message
from pslib.protocol.journal import Entry, Note
from pslib.protocol.messages import ALL_MESSAGES
from pslib.update_log.records import Buffer, padding

__all__ = ["entries_of", "first_note", "pieces_of"]

NOTE = ""
"""Kind of an entry that is no message."""
_COUNT_BYTES = 8


def _roles(cls: type[Message]) -> tuple[tuple[str, str, bool], ...]:
    """Name, role ("plain", "array" or "arrays") and whether it must be given, of each field."""
    found = []
    for spec in fields(cls):  # type: ignore[arg-type]
        role = next((role for role in ("array", "arrays") if role in spec.metadata), "plain")
        needed = spec.default is MISSING and spec.default_factory is MISSING
        found.append((spec.name, role, needed))
    return tuple(found)


_ROLES = {kind: _roles(cls) for kind, cls in ALL_MESSAGES.items()}


def pieces_of(entries: Sequence[Entry]) -> list[Buffer]:
    """A body as contiguous pieces; arrays are passed as views where they can be."""
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
    for name, role, _needed in _ROLES[message.kind]:
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
    """Messages and notes of a body; arrays are views of it.

    Raises
    ------
    LogForeignError
        When a newer version has written what this one does not know.
    """
    header_bytes = int.from_bytes(body[:_COUNT_BYTES], "little")
    described = msgpack.unpackb(body[_COUNT_BYTES : _COUNT_BYTES + header_bytes], strict_map_key=False)
    arrays = _arrays(body, _COUNT_BYTES + header_bytes + padding(header_bytes), described)
    return [_entry(kind, plain, about, arrays, where) for kind, plain, about in described]


def first_note(read: Callable[[int, int], bytes]) -> Note:
    """The first entry of a body, if it is a note, without reading more than its header; else an empty one."""
    header_bytes = int.from_bytes(read(0, _COUNT_BYTES), "little")
    described = msgpack.unpackb(read(_COUNT_BYTES, header_bytes), strict_map_key=False)
    kind, plain, _about = described[0]
    return plain if kind == NOTE else {}


def _arrays(body: Buffer, start: int, described: list[Any]) -> Iterator[np.ndarray[Any, Any]]:
    for _kind, _plain, about in described:
        for _name, _key, code, *shape in about:
            dtype = np.dtype(code)
            count = math.prod(shape)
            yield np.frombuffer(body, dtype, count, start).reshape(shape) if count else np.empty(shape, dtype)
            start += count * dtype.itemsize + padding(count * dtype.itemsize)


def _entry(
    kind: str, plain: dict[str, Any], about: list[Any], arrays: Iterator[np.ndarray[Any, Any]], where: str
) -> Entry:
    if kind == NOTE:
        return plain
    cls, values = ALL_MESSAGES.get(kind), dict(plain)
    for name, key, *_shape in about:
        if key is None:
            values[name] = next(arrays)
        else:
            values.setdefault(name, {})[key] = next(arrays)
    roles = _ROLES[kind] if cls else ()
    unknown = [name for name in values if all(name != role[0] for role in roles)]
    if cls is None or unknown:
        raise LogForeignError(
            f"{where}: {kind}{f' with {unknown[0]}' if cls else ''} is not known to this version; start the "
            "newer pslib that wrote it"
        )
    for name, role, needed in roles:
        if role == "arrays" and needed:
            values.setdefault(name, {})
    return cls(**values)
