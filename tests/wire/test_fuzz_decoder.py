"""The decoder against messages with something wrong in them: a message or one error, never a crash."""

from __future__ import annotations

import random
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.errors import RemoteProtocolError
from pslib.wire.codec import Codec, Envelope
from pslib.wire.fields import Message
from pslib.wire.messages import ALL_MESSAGES
from tests.support.messages import SEEDS, changed_header, mutants

CODEC = Codec("demo")
GROWTH_BYTES_MAX = 16 << 20


def decoded(frames: list[bytes]) -> Envelope | None:
    """The message, or None when it is refused: in one short line."""
    try:
        return CODEC.decode(frames)
    except RemoteProtocolError as error:
        line = str(error)
    assert "\n" not in line
    assert len(line) < 1000
    return None


def survivors(count: int, seed: int) -> tuple[int, set[str]]:
    """Return the number and kinds of mutants that are still messages; those re-encode and stay the same."""
    survived, kinds = 0, set()
    for number, frames in enumerate(mutants(CODEC, SEEDS, count, seed)):
        envelope = decoded(frames)
        if envelope is None:
            continue
        survived += 1
        kinds.add(envelope.message.kind)
        if number % 10 == 0:
            sent_on = [bytes(frame) for frame in CODEC.encode(envelope.request_id, envelope.message)]
            again = CODEC.decode(sent_on)
            assert [bytes(f) for f in CODEC.encode(again.request_id, again.message)] == sent_on
    return survived, kinds


def grown_bytes(count: int, seed: int) -> int:
    """By how much this process has grown, after a part of them, at the end of all."""
    process = psutil.Process()
    survivors(count // 10, seed)
    before = process.memory_info().rss
    survivors(count, seed + 1)
    return process.memory_info().rss - before


def test_a_changed_message_is_a_message_or_a_protocol_error_in_one_line() -> None:
    survived, kinds = survivors(40_000, seed=1)
    assert 400 < survived < 36_000  # both ways are taken
    assert kinds == set(ALL_MESSAGES)  # and none is always refused


def test_messages_that_are_refused_leave_no_memory_behind() -> None:
    assert grown_bytes(10_000, seed=2) < GROWTH_BYTES_MAX


@pytest.mark.soak
def test_a_million_changed_messages() -> None:
    assert grown_bytes(1_000_000, seed=4) < GROWTH_BYTES_MAX


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(SEEDS), PLAIN, st.integers(0, 2**32))
def test_any_value_in_any_place_of_a_header(message: Message, value: Any, place: int) -> None:
    frames = [bytes(frame) for frame in CODEC.encode(5, message)]
    frames[0] = changed_header(frames[0], random.Random(place), value)
    decoded(frames)


@given(st.sampled_from(SEEDS), st.data())
def test_a_message_that_is_cut_anywhere(message: Message, data: Any) -> None:
    frames = [bytes(frame) for frame in CODEC.encode(5, message)]
    which = data.draw(st.integers(0, len(frames) - 1))
    if frames[which]:
        frames[which] = frames[which][: data.draw(st.integers(0, len(frames[which]) - 1))]
        with pytest.raises(RemoteProtocolError):
            CODEC.decode(frames)
