"""Marks against what they stand for: the plain set of all (stream, number, unit) that have been applied.

The model drives several shards as the protocol does: a client raises a floor only over numbers that it has
seen applied to all their units, and a unit takes its part of the memory along when it moves.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pslib.wire.applied_pushes import FencedError, Marks
from pslib.wire.codec import Codec
from pslib.wire.messages import Image

UNITS, SHARDS, STREAMS, NUMBERS = 6, 3, 3, 8
STREAM = st.integers(0, STREAMS - 1)
NUMBER = st.integers(0, NUMBERS - 1)


def _units_of(stream: int, number: int) -> int:
    """The units of a push: fixed by its name."""
    return (stream * 7 + number * 5) % (1 << UNITS) or 1


def _bits(mask: int) -> Iterator[int]:
    return (unit for unit in range(UNITS) if mask >> unit & 1)


class MarksAgainstASet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shards = [Marks() for _ in range(SHARDS)]
        self.owner = {unit: unit % SHARDS for unit in range(UNITS)}
        self.applied: set[tuple[int, int, int]] = set()
        self.done_below = 0

    def _floor(self, stream: int) -> int:
        """All numbers below it are applied to all their units: what a client may say at most."""
        for number in range(NUMBERS):
            if any((stream, number, unit) not in self.applied for unit in _bits(_units_of(stream, number))):
                return number
        return NUMBERS

    @rule(stream=STREAM, number=NUMBER, back=st.integers(0, NUMBERS), shard=st.integers(0, SHARDS - 1))
    def a_copy_of_a_push_comes(self, stream: int, number: int, back: int, shard: int) -> None:
        marks = self.shards[shard]
        mine = sum(1 << unit for unit in _bits(_units_of(stream, number)) if self.owner[unit] == shard)
        expected = sum(1 << unit for unit in _bits(mine) if (stream, number, unit) not in self.applied)
        if stream < self.done_below:
            expected = 0
        assert marks.fresh(stream, number, 0, mine) == expected
        marks.raise_floor(stream, max(self._floor(stream) - back, 0))
        if expected:
            marks.record(stream, number, expected)
            self.applied |= {(stream, number, unit) for unit in _bits(expected)}

    @rule(unit=st.integers(0, UNITS - 1), to=st.integers(0, SHARDS - 1))
    def a_unit_moves(self, unit: int, to: int) -> None:
        source = self.owner[unit]
        codec = Codec("demo")
        image = Image(unit, 2, self.shards[source].export(unit), {}, {})
        received = codec.decode(codec.encode(1, image)).message
        assert isinstance(received, Image)
        self.shards[source].forget_unit(unit)
        self.shards[to].adopt(unit, received.marks)
        self.owner[unit] = to

    @rule(stream=STREAM, shard=st.integers(0, SHARDS - 1))
    def the_coordinator_says_which_streams_are_done(self, stream: int, shard: int) -> None:
        if all(self._floor(s) == NUMBERS for s in range(stream)):
            self.done_below = max(self.done_below, stream)
        self.shards[shard].finish_below(self.done_below)

    @invariant()
    def memory_is_bounded_by_what_is_above_the_floors(self) -> None:
        for marks in self.shards:
            assert len(marks) <= STREAMS
            for known in marks.streams.values():
                assert all(number >= known.floor and units for number, units in known.applied.items())


MarksAgainstASet.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestMarksAgainstASet = MarksAgainstASet.TestCase


def test_a_floor_never_falls() -> None:
    """Messages overtake each other; an older one says an older floor."""
    marks = Marks()
    marks.record(7, 0, 0b1)
    marks.raise_floor(7, 5)
    marks.raise_floor(7, 2)
    assert marks.fresh(7, 4, 0, 0b1) == 0


def test_an_older_epoch_is_fenced_and_says_which_holds_the_lease() -> None:
    marks = Marks()
    marks.fresh(7, 0, 2, 0b1)
    with pytest.raises(FencedError, match="lease 7 is held under epoch 2; this push has epoch 1"):
        marks.fresh(7, 0, 1, 0b1)


def test_the_fence_moves_with_a_unit() -> None:
    """The new owner has never heard of the successor; its epoch must come with the unit."""
    source, target = Marks(), Marks()
    source.fresh(7, 0, 2, 0b1)
    target.adopt(0, source.export(0))
    with pytest.raises(FencedError):
        target.fresh(7, 0, 1, 0b1)


def test_an_old_image_does_not_lower_what_is_known() -> None:
    target = Marks()
    target.fresh(7, 0, 3, 0b10)
    target.raise_floor(7, 9)
    target.adopt(0, {"done_below": 0, "streams": [[7, 1, 4, [5]]]})
    assert target.fresh(7, 8, 3, 0b1) == 0


def test_streams_that_are_done_take_no_memory_and_their_late_copies_are_known() -> None:
    marks = Marks()
    for stream in range(1000):
        marks.record(stream, 0, 0b1)
    marks.finish_below(999)
    assert len(marks) == 1
    assert marks.fresh(5, 0, 0, 0b1) == 0
    assert len(marks) == 1


def test_what_is_done_moves_with_a_unit() -> None:
    source, target = Marks(), Marks()
    source.finish_below(10)
    target.adopt(0, source.export(0))
    assert target.fresh(9, 0, 0, 0b1) == 0
    assert target.fresh(10, 0, 0, 0b1) == 0b1


def test_a_unit_that_has_left_is_forgotten() -> None:
    marks = Marks()
    marks.record(7, 3, 0b11)
    marks.forget_unit(0)
    assert marks.fresh(7, 3, 0, 0b11) == 0b01
    marks.forget_unit(1)
    assert not marks.streams[7].applied
