"""One example of every message of the wire, and messages with something wrong in them, by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

import msgpack
import numpy as np

from pslib.wire.codec import Codec
from pslib.wire.fields import ArrayRule, Message
from pslib.wire.messages import ALL_MESSAGES, Pull

__all__ = ["EXAMPLES", "SEEDS", "changed_header", "example", "mutants"]

_PLAIN: Mapping[Any, Any] = {int: 3, str: "t", bool: True, float: 1.5}


def _array(rule: ArrayRule) -> np.ndarray[Any, Any]:
    dtype = rule.dtypes[0] if rule.dtypes else np.dtype("<f4")
    return np.ones((2,) * rule.ndim, dtype)


def example(cls: type[Message], **changes: Any) -> Message:
    """A message of this kind; ``changes`` are fields with other values."""
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for spec in fields(cls):  # type: ignore[arg-type]
        hint = hints[spec.name]
        if rule := spec.metadata.get("array"):
            values[spec.name] = _array(rule)
        elif rule := spec.metadata.get("arrays"):
            values[spec.name] = {"t": _array(rule), "u": _array(rule)}
        elif hint in _PLAIN:
            values[spec.name] = _PLAIN[hint]
        else:
            values[spec.name] = [1, "a"] if getattr(hint, "__origin__", None) is Sequence else {"a": [1, 2.5]}
    return cls(**(values | changes))


EXAMPLES: tuple[Message, ...] = tuple(example(ALL_MESSAGES[kind]) for kind in sorted(ALL_MESSAGES))

_LARGE = Pull({"a": np.zeros(1025, np.uint64)}, np.arange(300, dtype=np.uint32))

SEEDS: tuple[Message, ...] = (*EXAMPLES, _LARGE)
"""Messages that mutants are made of: large arrays travel in another way than small ones."""


# --- mutants ---

MARKS = (0x90, 0x80, 0xC0, 0xC4, 0xCF, 0xDD, 0xDF, 0xFF)
"""First bytes of msgpack's values: a changed byte is often another value, not only another number."""

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 62, (1 << 64) - 1, 0.5, float("nan"),
    float("inf"), -1e300, "", "t", "u", "item", "f4", "u8", "O", "x" * 5000, b"", b"\0" * 9, [], [[]], {},
    {"a": 1}, ["t", "t"], ["f4", 1 << 40], ["u8", 0], ["f4", 1, 1], ["f4", 2, 1 << 62],
)  # fmt: skip


def mutants(codec: Codec, seeds: Sequence[Message], count: int, seed: int) -> Iterator[list[bytes]]:
    """The frames of ``count`` messages, each with one to three changes; some of them still are messages."""
    choice = random.Random(seed)
    encoded = [[bytes(frame) for frame in codec.encode(5, message)] for message in seeds]
    for _ in range(count):
        frames = [bytearray(frame) for frame in choice.choice(encoded)]
        for _ in range(choice.randint(1, 3)):
            _change(choice, frames)
        yield [bytes(frame) for frame in frames]


def _change(choice: random.Random, frames: list[bytearray]) -> None:
    if not frames:
        return
    place = 0 if choice.random() < 0.7 else choice.randrange(len(frames))
    what = choice.randrange(10)
    if what < 3:
        frames[0][:] = changed_header(bytes(frames[0]), choice, choice.choice(VALUES))
    elif what == 3:
        frames.insert(choice.randint(0, len(frames)), bytearray(choice.randbytes(choice.randint(0, 9))))
    elif what == 4:
        frames.append(frames.pop(place))
    elif what == 5:
        del frames[place]
    else:
        _change_bytes(choice, frames[place], what)


def _change_bytes(choice: random.Random, frame: bytearray, what: int) -> None:
    at = choice.randint(0, len(frame))
    if what == 6:
        del frame[at:]
    elif what == 7:
        frame.insert(at, choice.randrange(256))
    elif what == 8:
        del frame[at : at + 1]
    else:
        frame[at : at + 1] = bytes([choice.choice((choice.randrange(256), *MARKS))])


def changed_header(frame: bytes, choice: random.Random, value: Any) -> bytes:
    """A frame that begins with a header, with ``value`` at one place of it; another frame as it is."""
    reader = msgpack.Unpacker(strict_map_key=False)
    reader.feed(frame)
    try:
        header = reader.unpack()
    except Exception:  # whatever msgpack raises for what an earlier change has made of it
        return frame
    if not isinstance(header, list) or not header:
        return frame
    place: Any = header
    while True:
        at = choice.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[at], list | dict) or not place[at] or choice.random() < 0.3:
            break
        place = place[at]
    place[at] = value
    return bytes(msgpack.packb(header)) + frame[reader.tell() :]
