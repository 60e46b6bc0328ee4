"""A short and plain request gets the answer, and leaves the shard, of one that is served in full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pslib.protocol.messages import Message, Pull, Pulled
from pslib.protocol.shard_jobs import answer_now, shard_stats
from tests.protocol_worlds import NO_BLOCKS, NO_FLOATS, OneServer, push_ones, setup_of

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


class Two:
    """Two servers that are asked the same; one may answer at once, and counts how often it did."""

    def __init__(self) -> None:
        self.short, self.full, self.at_once = OneServer(units=OWNED), OneServer(units=OWNED), 0
        self.ask(setup_of(t=1))
        self.short.session.answer_now = self._answer_now

    def _answer_now(self, message: Message) -> Message | None:
        answer = answer_now(self.short.shards[0], message, ROWS_MAX)
        self.at_once += answer is not None
        return answer

    def ask(self, message: Message) -> Any:
        """The answer of both."""
        answers = [server.ask(message) for server in (self.short, self.full)]
        assert repr(answers[0]) == repr(answers[1])
        shards = [server.shards[0] for server in (self.short, self.full)]
        assert shard_stats(shards[0]) == shard_stats(shards[1])
        assert sorted(shards[0].marks.streams()) == sorted(shards[1].marks.streams())
        return answers[0]


def test_plain_ones_are_answered_at_once() -> None:
    two = Two()
    two.ask(PUSH)
    answer = two.ask(PULL)
    assert isinstance(answer, Pulled)
    assert answer.rows["t"].ravel().tolist() == [1.0] * 4
    assert two.at_once == 2


@pytest.mark.parametrize("message", OTHERS, ids=range(len(OTHERS)))
def test_others_are_left_to_be_served_in_full(message: Message) -> None:
    two = Two()
    two.ask(PUSH)
    two.ask(message)
    assert two.at_once == 1
    two.ask(PULL)


def test_a_push_that_is_known_counts_once_and_one_that_is_known_in_part_the_rest() -> None:
    two = Two()
    half = replace(PUSH, keys={"t": KEYS[:1]}, gradients={"t": -np.ones((1, 1), np.float32)})
    for push in (half, half, PUSH, PUSH):
        two.ask(push)
    assert two.at_once == 3, "the third is known in part"
    assert two.ask(PULL).rows["t"].ravel().tolist() == [1.0] * 4


def test_who_has_lost_its_lease_is_refused_in_the_same_words() -> None:
    two = Two()
    two.ask(replace(PUSH, epoch=2))
    assert two.ask(replace(PUSH, number=3, epoch=1)).code == "fenced"


def test_a_push_for_which_room_must_be_looked_for_is_served_in_full() -> None:
    two = Two()
    for server in (two.short, two.full):
        server.shards[0].room.limit_bytes = 1 << 30
    two.ask(PUSH)
    assert two.at_once == 0, "nobody has looked yet"
    two.ask(replace(PUSH, number=3))
    assert two.at_once == 1


def test_no_keys_at_all_are_no_special_case() -> None:
    two, nothing = Two(), np.empty(0, np.uint64)
    two.ask(replace(PULL, keys={"t": nothing}))
    two.ask(replace(PULL, keys={}))
    two.ask(replace(PUSH, keys={"t": nothing}, gradients={"t": NO_FLOATS.reshape(0, 1)}))


def test_a_fault_half_way_through_a_push_stops_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    for server in (two.short, two.full):
        monkeypatch.setattr(server.shards[0].counters, "pushes_applied", None)
    assert [server.ask(PUSH).code for server in (two.short, two.full)] == ["internal"] * 2
    assert [server.ask(PULL).code for server in (two.short, two.full)] == ["internal"] * 2
    assert two.short.shards[0].broken == two.full.shards[0].broken
