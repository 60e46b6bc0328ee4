"""A short and plain request gets the answer, and leaves the shard, of one that is served in full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.protocol.messages import Message, Pull, Pulled, Push
from pslib.protocol.server_session import Answers, Came
from pslib.protocol.shard_requests import answer_frames, answer_now, shard_stats
from pslib.transport.link import Peer
from tests.protocol_worlds import CODEC, NO_BLOCKS, NO_FLOATS, OneServer, push_ones, setup_of

ROWS_MAX = 8
OWNED = list(range(8, 16))
"""Half of the partitions; and no dense block."""
ALL = np.arange(64, dtype=np.uint64)


def _mine(count: int) -> np.ndarray:
    """Keys that the server owns."""
    answer = OneServer(units=OWNED)
    answer.ask(setup_of(t=1))
    found = [k for k in ALL if not answer.ask(Pull({"t": np.array([k])}, NO_BLOCKS)).refused_units.size]
    return np.array(found[:count], np.uint64)


KEYS = _mine(4)
PULL, PUSH = Pull({"t": KEYS}, NO_BLOCKS), replace(push_ones(2, KEYS), home=OWNED[0])
ONE_BLOCK = np.array([0], np.uint32)
OTHERS: list[Message] = [
    replace(PULL, keys={"t": ALL}),
    replace(PULL, keys={"t": ALL[:4]}),
    replace(PULL, keys={"t": np.concatenate([KEYS] * 3)}),
    replace(PULL, keys={"t": KEYS, "u": KEYS}),
    replace(PULL, rows_as="int8"),
    replace(PULL, rows_as="nothing"),
    replace(PULL, dense_as="nothing"),
    replace(PULL, known={"versions": np.zeros(1, np.uint64)}),
    replace(PULL, blocks=ONE_BLOCK),
    replace(PULL, time_s=-1.0),
    replace(PUSH, keys={"t": ALL}, gradients={"t": np.ones((64, 1), np.float32)}),
    replace(PUSH, keys={"t": ALL[:4]}),
    replace(PUSH, gradients={"t": np.ones((4, 2), np.float32)}),
    replace(PUSH, gradients={"t": np.ones((3, 1), np.float32)}),
    replace(PUSH, gradients={"t": np.ones((4, 1), np.float16)}),
    replace(PUSH, gradients={"u": np.ones((4, 1), np.float32)}),
    replace(PUSH, gradients={}),
    replace(PUSH, shows={"t": np.zeros(4, np.float32)}),
    replace(PUSH, clicks={"t": np.ones(4, np.float32)}),
    replace(PUSH, gradient_scales={"t": np.ones(4, np.float32)}),
    replace(PUSH, rate=0.5),
    replace(PUSH, rate=-1.0),
    replace(PUSH, delta=True),
    replace(PUSH, home=10_000),
    replace(PUSH, time_s=1e13),
    replace(PUSH, blocks=ONE_BLOCK, dense=np.ones(2, np.float32)),
    replace(PUSH, sync={"contributors": ONE_BLOCK}),
    setup_of(u=2),
]


SHORT = CODEC.short_requests(ROWS_MAX)


class Two:
    """Two servers that are asked the same; one may answer at once, and counts how often it did.

    Its way is from message to message, or from bytes to bytes.
    """

    def __init__(self, way: str) -> None:
        self.short, self.full, self.at_once = OneServer(units=OWNED), OneServer(units=OWNED), 0
        self.ask(setup_of(t=1, wide=3))
        if way == "messages":
            self.short.session.answer_now = self._answer_now
        else:
            self.short.session.answer_frames = self._answer_frames

    def _answer_now(self, message: Message) -> Message | None:
        answer = answer_now(self.short.shards[0], message, ROWS_MAX)
        self.at_once += answer is not None
        return answer

    def _answer_frames(self, came: list[Came]) -> Answers:
        assert SHORT is not None
        replies, failure = answer_frames(self.short.shards[0], SHORT, CODEC, came)
        self.at_once += len(replies) + (failure is not None)
        return replies, failure

    def ask(self, message: Message) -> Any:
        """The answer of both."""
        frames = [bytes(frame) for frame in CODEC.encode(7, message)]
        return CODEC.decode(self.ask_bytes(frames)).message

    def ask_bytes(self, frames: list[bytes]) -> list[bytes]:
        """The same bytes from both, which are the same afterwards."""
        answers = [server.answer_to(frames) for server in (self.short, self.full)]
        assert answers[0] == answers[1]
        shards = [server.shards[0] for server in (self.short, self.full)]
        assert shard_stats(shards[0]) == shard_stats(shards[1])
        assert sorted(shards[0].marks.floors()) == sorted(shards[1].marks.floors())
        units = [[shard.marks.export(unit) for unit in OWNED] for shard in shards]
        assert units[0] == units[1]
        return answers[0]


@pytest.fixture(params=["messages", "bytes"])
def two(request: pytest.FixtureRequest) -> Two:
    return Two(request.param)


def test_plain_ones_are_answered_at_once(two: Two) -> None:
    two.ask(PUSH)
    answer = two.ask(PULL)
    assert isinstance(answer, Pulled)
    assert answer.rows["t"].ravel().tolist() == [1.0] * 4
    assert two.at_once == 2


@pytest.mark.parametrize("message", OTHERS, ids=range(len(OTHERS)))
def test_others_are_left_to_be_served_in_full(two: Two, message: Message) -> None:
    two.ask(PUSH)
    two.ask(message)
    assert two.at_once == 1
    two.ask(PULL)


def test_a_push_that_is_known_counts_once_and_one_that_is_known_in_part_the_rest(two: Two) -> None:
    half = replace(PUSH, keys={"t": KEYS[:1]}, gradients={"t": -np.ones((1, 1), np.float32)})
    for push in (half, half, PUSH, PUSH):
        two.ask(push)
    assert two.at_once == 3, "the third is known in part"
    assert two.ask(PULL).rows["t"].ravel().tolist() == [1.0] * 4


def test_who_has_lost_its_lease_is_refused_in_the_same_words(two: Two) -> None:
    two.ask(replace(PUSH, epoch=2))
    assert two.ask(replace(PUSH, number=3, epoch=1)).code == "fenced"


def test_a_push_for_which_room_must_be_looked_for_is_served_in_full() -> None:
    two = Two("messages")
    for server in (two.short, two.full):
        server.shards[0].room.limit_bytes = 1 << 30
    two.ask(PUSH)
    assert two.at_once == 0, "nobody has looked yet"
    two.ask(replace(PUSH, number=3))
    assert two.at_once == 1


def test_no_keys_at_all_are_no_special_case(two: Two) -> None:
    nothing = np.empty(0, np.uint64)
    two.ask(replace(PULL, keys={"t": nothing}))
    two.ask(replace(PULL, keys={}))
    two.ask(replace(PUSH, keys={"t": nothing}, gradients={"t": NO_FLOATS.reshape(0, 1)}))


def test_a_fault_half_way_through_a_push_stops_the_shard(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    for server in (two.short, two.full):
        monkeypatch.setattr(server.shards[0].counters, "pushes_applied", None)
    assert [server.ask(PUSH).code for server in (two.short, two.full)] == ["internal"] * 2
    assert [server.ask(PULL).code for server in (two.short, two.full)] == ["internal"] * 2
    assert two.short.shards[0].broken == two.full.shards[0].broken


def test_where_memory_is_bounded_or_a_log_is_kept_bytes_are_left_to_be_read() -> None:
    two = Two("bytes")
    for server in (two.short, two.full):
        server.shards[0].room.limit_bytes = 1 << 30
    two.ask(PUSH)
    assert two.at_once == 0


def test_a_key_that_may_only_read_pushes_nothing_by_any_way(two: Two) -> None:
    reader = Peer(b"me", "reader")
    for server in (two.short, two.full):
        assert server.answer_to(CODEC.encode(1, PUSH), reader)[0].find(b"forbidden") > 0
    assert two.ask(PULL).rows["t"].ravel().tolist() == [0.0] * 4


_NUMBERS = st.sampled_from([0, 1, 127, 128, 65_536, (1 << 32) - 1, (1 << 63) + 5])
_FLOATS = st.floats(-1e3, 1e3, width=32)


@st.composite
def requests(draw: st.DrawFn) -> Message:
    """Pulls and pushes that are plain, or nearly."""
    table, dim = draw(st.sampled_from([("t", 1), ("wide", 3), ("wide", 1), ("none", 1)]))
    keys = np.array(
        draw(st.lists(st.sampled_from([*KEYS, *KEYS, ALL[0]]), unique=True, max_size=4)), np.uint64
    )
    step, time_s = draw(_NUMBERS), draw(st.sampled_from([0.0, 1.5, 1e12, 1.1e12]))
    if draw(st.booleans()):
        return Pull({table: keys}, NO_BLOCKS, step, time_s)
    rows = draw(st.lists(_FLOATS, min_size=keys.size * dim, max_size=keys.size * dim))
    gradients = np.array(rows, np.float32).reshape(keys.size, dim)
    name = draw(st.integers(0, 2)), draw(st.integers(0, 5)), draw(st.integers(0, 1)), draw(st.integers(0, 4))
    about = (draw(st.sampled_from([8, 15, 16, 1 << 40])), {table: keys}, {table: gradients})
    return Push(*name, *about, NO_BLOCKS, NO_FLOATS, step, time_s)


@given(st.lists(st.tuples(requests(), _NUMBERS), max_size=12))
def test_any_requests_leave_the_same_behind(asked: list[tuple[Message, int]]) -> None:
    two = Two("bytes")
    for message, request_id in asked:
        two.ask_bytes([bytes(frame) for frame in CODEC.encode(request_id, message)])
    for table in ("t", "wide"):
        two.ask_bytes(CODEC.encode(1, Pull({table: KEYS}, NO_BLOCKS)))


@given(st.sampled_from([PULL, PUSH]), st.data())
def test_bytes_that_are_nearly_a_request_are_refused_as_ever(message: Message, data: st.DataObject) -> None:
    two, frame = Two("bytes"), bytearray(CODEC.encode(7, message)[0])
    place = data.draw(st.integers(0, len(frame) - 1))
    if data.draw(st.booleans()):
        frame[place] = data.draw(st.integers(0, 255))
    else:
        del frame[place:]
    two.ask_bytes([bytes(frame)])
    two.ask(PULL)


def test_of_all_that_came_those_before_the_first_other_one_are_answered() -> None:
    two = Two("bytes")
    frames = [CODEC.encode(number, one) for number, one in enumerate((PUSH, PULL, OTHERS[0], PULL))]
    assert two.short.session.receive_short([(b"me", one) for one in frames]) == 2
    assert [CODEC.decode(reply.frames).request_id for reply in two.short.session.outbox] == [0, 1]


def test_a_fault_ends_the_row_of_answers_with_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two("bytes")
    monkeypatch.setattr(two.short.shards[0].counters, "pushes_applied", None)
    frames = [CODEC.encode(number, one) for number, one in enumerate((PULL, PUSH, PULL))]
    assert two.short.session.receive_short([(b"me", one) for one in frames]) == 2
    kinds = [CODEC.decode(reply.frames).message.kind for reply in two.short.session.outbox]
    assert kinds == ["Pulled", "Failure"]
    assert "ended half-way" in two.short.shards[0].broken
