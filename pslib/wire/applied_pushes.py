"""Record of the named pushes applied to each unit, so that a push counts once.

A push is named ``(stream, number)``. A partition can change its owner while the parts of a push are in
flight, so "applied" is a fact about a *unit* (a partition or a dense block), never about a server. Each
stream has a floor: the client says that every number below it is applied everywhere. For the few numbers
above it, the set of units to which each has been applied here is kept. A unit that moves takes its part of
this record along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cython_ext.common.hashing import mix64_of
from pslib.errors import ConfigurationError
from pslib.validation import came

NUMBERS = 1 << 64


class FencedError(Exception):
    """A push under a lease that has another holder by now."""


@dataclass(slots=True)
class StreamMarks:
    """Marks of one stream: its floor, its epoch, and the units of each number above the floor."""

    floor: int = 0
    epoch: int = 0
    applied: dict[int, int] = field(default_factory=dict)
    """Number -> units to which it has been applied, as bits of an integer of thousands of bits."""


def record_salt(stream: int, number: int) -> int:
    """Return the random bits of a record: a hash of its name alone, so the same however the push is split."""
    return mix64_of(mix64_of(stream) ^ number)


def check_marks(unit: int, plain: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless a value has the form of `Marks.export`, before any of it is used."""
    match plain:
        case {"done_below": below, "streams": [*streams]} if _is_number(below):
            wrong = [one for one in streams if not _is_stream(one)]
        case _:
            wrong = [plain]
    if wrong:
        raise ConfigurationError(
            f"unit {unit}: its marks: expected a number done_below and streams of [stream, epoch, floor, "
            f"[numbers]], got {came(wrong[0])}"
        )


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < NUMBERS


def _is_stream(plain: Any) -> bool:
    match plain:
        case [stream, epoch, floor, [*numbers]]:
            return all(map(_is_number, (stream, epoch, floor, *numbers)))
    return False


class Marks:
    """Marks of the units that one shard owns, by stream.

    Attributes
    ----------
    streams : dict of int to StreamMarks
    done_below : int
        All streams below this number are over.

    Examples
    --------
    >>> marks = Marks()
    >>> marks.fresh(stream=7, number=0, epoch=0, units=0b011)
    3
    >>> marks.record(stream=7, number=0, units=0b011)
    >>> marks.fresh(stream=7, number=0, epoch=0, units=0b110)
    4
    """

    def __init__(self) -> None:
        self.streams: dict[int, StreamMarks] = {}
        self.done_below = 0
        self.began_units = 0
        """Units present when all of a predecessor's records had been replayed; see `begin`."""
        self._began: Marks = self

    def __len__(self) -> int:
        return len(self.streams)

    def fresh(self, stream: int, number: int, epoch: int, units: int) -> int:
        """Return those of ``units`` (bits) to which a push has not been applied yet.

        Raises
        ------
        FencedError
            When a later epoch of this stream has been seen: the lease has another holder.
        """
        if stream < self.done_below:
            return 0
        known = self._marks_of(stream)
        if epoch < known.epoch:
            raise FencedError(
                f"lease {stream} is held under epoch {known.epoch}; this push has epoch {epoch}"
            )
        known.epoch = epoch
        return 0 if number < known.floor else units & ~known.applied.get(number, 0)

    def record(self, stream: int, number: int, units: int) -> None:
        """Record that a push has been applied to ``units``."""
        applied = self._marks_of(stream).applied
        applied[number] = applied.get(number, 0) | units

    def raise_floor(self, stream: int, below: int) -> None:
        """Replace the marks of all numbers below ``below``, which are applied everywhere, by the floor."""
        known = self.streams.get(stream)
        if known is None or below <= known.floor:
            return
        known.floor = below
        for number in [number for number in known.applied if number < below]:
            del known.applied[number]

    def _marks_of(self, stream: int) -> StreamMarks:
        known = self.streams.get(stream)
        if known is None:
            known = self.streams[stream] = StreamMarks()
        return known

    def knows(self, stream: int, number: int, unit: int) -> bool:
        """Return whether a push has been applied to a unit; changes nothing."""
        if stream < self.done_below:
            return True
        known = self.streams.get(stream)
        if known is None:
            return False
        return number < known.floor or bool(known.applied.get(number, 0) >> unit & 1)

    def begin(self, units: int) -> None:
        """Mark the end of the replay of a predecessor that owned ``units``; `knew` refers to this moment."""
        began = Marks()
        began.done_below = self.done_below
        for stream, known in self.streams.items():
            began.streams[stream] = StreamMarks(known.floor, known.epoch, dict(known.applied))
        self.began_units, self._began = units, began

    def knew(self, stream: int, number: int, unit: int) -> bool:
        """Return whether a push from before `begin` had been applied to a unit.

        A later floor only says that a client was told so, which is not the same when the end of a log is
        lost. A unit that arrived later brought its marks along.
        """
        return (self._began if self.began_units >> unit & 1 else self).knows(stream, number, unit)

    def saw(self, stream: int, epoch: int, below: int) -> None:
        """Record the epoch and floor of a request of this stream that applied nothing."""
        if stream >= self.done_below:
            known = self._marks_of(stream)
            known.epoch = max(known.epoch, epoch)
            self.raise_floor(stream, below)

    def take_over(self, stream: int, epoch: int) -> None:
        """Fence earlier holders of a lease, for a request that is no push.

        Raises
        ------
        FencedError
            When a later holder is known, or the lease is over.
        """
        known = self.streams.get(stream)
        if stream < self.done_below:
            raise FencedError(f"lease {stream} is over: others have gone on while this trainer was silent")
        if known is not None and epoch < known.epoch:
            raise FencedError(
                f"lease {stream} is held under epoch {known.epoch}; this trainer, which was silent, had it "
                f"under epoch {epoch}"
            )
        self.saw(stream, epoch, 0)

    def floors(self) -> list[list[int]]:
        """Return number, epoch and floor of each stream: the marks that belong to no single unit."""
        return [[stream, known.epoch, known.floor] for stream, known in self.streams.items()]

    def finish_below(self, stream: int) -> None:
        """Finish all streams below ``stream`` (their leases are done): only this one number is kept."""
        if stream <= self.done_below:
            return
        self.done_below = stream
        for number in [number for number in self.streams if number < stream]:
            del self.streams[number]

    def export(self, unit: int) -> dict[str, Any]:
        """Export the marks of one unit, in plain form for a message."""
        bit = 1 << unit
        return {
            "done_below": self.done_below,
            "streams": [
                [
                    stream,
                    known.epoch,
                    known.floor,
                    sorted(n for n, units in known.applied.items() if units & bit),
                ]
                for stream, known in self.streams.items()
            ],
        }

    def adopt(self, unit: int, plain: Mapping[str, Any]) -> None:
        """Add the marks of ``unit`` from another shard: floors hold everywhere, numbers for this unit."""
        self.finish_below(int(plain["done_below"]))
        for stream, epoch, floor, numbers in plain["streams"]:
            if stream < self.done_below:
                continue
            known = self._marks_of(int(stream))
            known.epoch = max(known.epoch, int(epoch))
            self.raise_floor(int(stream), int(floor))
            for number in numbers:
                if number >= known.floor:
                    self.record(int(stream), int(number), 1 << unit)

    def forget_unit(self, unit: int) -> None:
        """Drop the marks of a unit that has left."""
        mask = ~(1 << unit)
        for known in self.streams.values():
            kept = {number: units & mask for number, units in known.applied.items()}
            known.applied = {number: units for number, units in kept.items() if units}
