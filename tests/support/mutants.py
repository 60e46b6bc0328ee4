"""Messages with something wrong in them: changed bytes, frames and values of the header, by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from pslib.wire.codec import Codec
from pslib.wire.messages import Message

__all__ = ["changed_header", "mutants"]

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
