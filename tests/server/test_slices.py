"""Long requests are served in slices: short pulls pass between them, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.server.requests import ShardRequest, ShardTurns
from pslib.server.session import ServerSession
from pslib.shard.shard import Shard
from pslib.wire.fields import Message
from pslib.wire.messages import Changes, Erase, Failure, Pull, Push, Pushed
from tests.simulation.cluster.runs import caught
from tests.simulation.cluster.world import Planted
from tests.support.simulated.protocol_worlds import BITS, CODEC, NO_BLOCKS, NO_FLOATS, key_in, setup_of

KEYS = np.array([key_in(number % 16, number) for number in range(40)], np.uint64)
SLICE = 4


def no_files(_shard: Shard, _message: Message) -> dict[str, Any]:
    raise AssertionError("no test here touches files")


class Queue:
    """One server whose shards take turns as the test says."""

    def __init__(self, shards: int = 1, slice_rows: int = SLICE) -> None:
        units = np.arange((1 << BITS) + 4)
        self.shards = [Shard(BITS, 4, index, shards, slice_rows=slice_rows) for index in range(shards)]
        for shard in self.shards:
            shard.own(units)
            shard.setup(setup_of(dense_length=8, t=1))
        self.session = ServerSession(CODEC, self.shards)
        self.turns = [ShardTurns(shard, no_files) for shard in self.shards]
        self.answers: dict[int, Any] = {}
        self.order: list[int] = []

    def put(self, number: int, message: Message) -> None:
        """A request comes in."""
        request = self.session.receive(b"me", [bytes(frame) for frame in CODEC.encode(number, message)])
        assert request
        for index in request.shards:
            self.turns[index].put(request)

    def turn(self, index: int = 0) -> None:
        """One shard has one turn, if anything waits for it."""
        over = self.turns[index].turn() if self.turns[index] else []
        for request, result in over:
            self.session.complete(request, index, result)
        for reply in self.session.outbox:
            envelope = CODEC.decode([bytes(frame) for frame in reply.frames])
            self.answers[envelope.request_id] = envelope.message
            self.order.append(envelope.request_id)
        self.session.outbox.clear()

    def run(self) -> dict[int, Any]:
        """All that waits."""
        while any(self.turns):
            for index in range(len(self.turns)):
                self.turn(index)
        return self.answers

    def rows(self) -> dict[int, list[float]]:
        """Return the rows of all shards."""
        found: dict[int, list[float]] = {}
        for shard in self.shards:
            for partition in range(16):
                keys, weights, state = shard.stores["t"].export_partition(partition)
                both = np.concatenate([weights, state], 1)
                found.update(zip(keys.tolist(), both.tolist(), strict=True))
        return found


def push(number: int, keys: np.ndarray, step: float = 1.0, dense: bool = False) -> Push:
    blocks = np.arange(4, dtype=np.uint32) if dense else NO_BLOCKS
    gradients = np.full((keys.size, 1), -step, np.float32)
    vector = np.full(8, -step, np.float32) if dense else NO_FLOATS
    return Push(7, number, 0, 0, 0, {"t": keys}, {"t": gradients}, blocks, vector)


def pull(keys: np.ndarray, dense: bool = False) -> Pull:
    return Pull({"t": keys}, np.arange(4, dtype=np.uint32) if dense else NO_BLOCKS)


requests = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "again", "pull", "erase"]), st.integers(1, 24), st.integers(0, 2**20)
    ),
    min_size=1,
    max_size=12,
)


def messages(drawn: list[tuple[str, int, int]]) -> list[Message]:
    made: list[Message] = []
    for number, (what, size, seed) in enumerate(drawn):
        random = np.random.default_rng(seed)
        keys = random.choice(KEYS, size, replace=False)
        pushes = [one for one in made if isinstance(one, Push)]
        if what == "again" and pushes:
            made.append(pushes[seed % len(pushes)])
        elif what == "pull":
            made.append(pull(keys, dense=bool(seed & 1)))
        elif what == "erase":
            made.append(Erase(8, number, 0, 0, 0, {"t": keys}))
        else:
            made.append(push(number, keys, float(1 + seed % 5) / 3, dense=bool(seed & 1)))
    return made


@settings(max_examples=60)
@given(requests, st.integers(1, 3), st.integers(1, 6), st.lists(st.integers(0, 8), max_size=60))
def test_slices_and_their_interleavings_change_no_bit_of_any_row(
    drawn: list[tuple[str, int, int]], shards: int, slice_rows: int, turns: list[int]
) -> None:
    """Against a server that serves everything whole, in order, on one shard."""
    whole, sliced = Queue(slice_rows=1000), Queue(shards, slice_rows)
    left = list(enumerate(messages(drawn), 1))
    for number, message in left:
        whole.put(number, message)
        whole.run()
    for choice in turns:
        if choice > 4 and left:
            sliced.put(*left.pop(0))
        else:
            sliced.turn(choice % shards)
    for number, message in left:
        sliced.put(number, message)
    sliced.run()
    assert sliced.rows() == whole.rows()
    assert sliced.answers.keys() == whole.answers.keys()
    counters = [sum(getattr(shard.counters, name) for shard in sliced.shards) for name in COUNTERS]
    assert counters == [getattr(whole.shards[0].counters, name) for name in COUNTERS]


COUNTERS = ("pushes_applied", "updates_applied", "rows_pushed", "rows_pulled")


def test_a_long_pull_is_of_one_moment_although_it_is_served_in_slices() -> None:
    queue = Queue()
    queue.put(1, pull(KEYS, dense=True))
    queue.turn()
    queue.put(2, push(0, KEYS, dense=True))
    answers = queue.run()
    assert not answers[1].rows["t"].any()
    assert answers[1].dense.tolist() == list(range(8))
    queue.put(3, pull(KEYS, dense=True))
    assert (queue.run()[3].rows["t"] == 1).all()


CHANGED = Changes("t", np.empty(0, np.uint64), np.arange(16, dtype=np.uint32), NO_BLOCKS)
"""A question of a follower for all rows."""


@pytest.mark.parametrize("long", [push(0, KEYS), pull(KEYS), Erase(7, 0, 0, 0, 0, {"t": KEYS}), CHANGED])
def test_a_short_pull_waits_for_one_slice_and_not_for_the_whole_request(long: Message) -> None:
    queue = Queue()
    queue.put(0, push(1, KEYS))
    queue.run()
    queue.order.clear()
    queue.put(1, long)
    queue.put(2, long)
    queue.turn()
    queue.put(3, pull(KEYS[:SLICE]))
    queue.turn()
    assert queue.order == [3]
    queue.run()
    assert queue.order == [3, 1, 2]
    assert not queue.turns[0].has_long


def test_a_short_pull_sees_a_push_in_part_but_every_row_whole() -> None:
    queue = Queue()
    queue.put(1, push(0, KEYS, 1.0))
    for _ in range(3):
        queue.turn()
    queue.put(2, pull(KEYS[:3]))
    queue.put(3, pull(KEYS[-3:]))
    answers = queue.run()
    assert answers[2].rows["t"].tolist() == [[1.0]] * 3
    assert answers[3].rows["t"].tolist() == [[0.0]] * 3


def test_short_pulls_without_end_do_not_keep_a_long_push_waiting() -> None:
    queue = Queue()
    queue.put(1, push(0, KEYS))
    queue.turn()
    turns = 0
    for number in range(2, 200):
        queue.put(number, pull(KEYS[:2]))
        queue.put(1000 + number, pull(KEYS[:2]))
        queue.turn()
        turns += 1
        if 1 in queue.answers:
            break
    assert turns <= 3 * (KEYS.size // SLICE)


def test_a_push_that_fails_in_a_later_slice_is_never_acknowledged() -> None:
    queue = Queue()
    queue.put(1, push(0, KEYS))
    for _ in range(3):
        queue.turn()

    class Broken:
        def push(self, *_arguments: Any, **_record: Any) -> None:
            raise MemoryError("planted")

        def pull(self, *_arguments: Any) -> None:
            raise AssertionError("nothing may be read any more")

    queue.shards[0].stores["t"] = Broken()  # type: ignore[assignment]
    answers = queue.run()
    assert answers[1] == Failure("internal", "MemoryError: planted")
    queue.put(2, push(0, KEYS))
    queue.put(3, pull(KEYS[:2]))
    for answer in (queue.run()[number] for number in (2, 3)):
        assert answer.text == "shard 0 stopped: Push (7, 0) ended half-way: MemoryError: planted"


def test_rows_that_are_refused_are_zeros_whatever_was_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def dirty(shape: Any, dtype: Any) -> Any:
        return np.full(shape, 77, dtype)

    for shards in (1, 3):
        queue = Queue(shards)
        for shard in queue.shards:
            shard.owned &= ~(1 << 5 | 1 << 17)
            shard.kind_of_partition[5] = 1 if shard.is_responsible(5) else 2
            if shard.dense:
                shard.dense.weights.pop(1, None)
        queue.put(1, push(0, KEYS))
        queue.run()
        with monkeypatch.context() as patch:
            patch.setattr("pslib.server.session.np.empty", dirty)
            queue.put(2, pull(KEYS, dense=True))
        answer = queue.run()[2]
        assert sorted(answer.refused_units.tolist()) == [5, 17]
        places = np.arange(KEYS.size) % 16 == 5
        assert not answer.rows["t"][places].any()
        assert (answer.rows["t"][~places] == 1).all()
        assert answer.dense.tolist() == [0, 1, 0, 0, 4, 5, 6, 7]


def test_a_request_goes_to_the_shards_that_have_a_part_in_it_only() -> None:
    queue = Queue(shards=4)
    queue.put(1, pull(KEYS[5:6]))
    assert [bool(turns) for turns in queue.turns] == [False, True, False, False]
    queue.run()
    queue.put(2, pull(KEYS[:0]))
    assert [bool(turns) for turns in queue.turns] == [True, False, False, False]
    assert queue.run()[2].rows["t"].shape == (0, 1)
    queue.put(3, push(0, KEYS[:1], dense=True))
    assert isinstance(queue.run()[3], Pushed)
    assert queue.shards[0].counters.updates_applied == 2
    assert sum(shard.counters.updates_applied for shard in queue.shards) == 5


class PushesPass(ShardTurns):
    """Short pushes pass too, also the second copy of a push that is half applied."""

    def put(self, work: Any) -> None:
        if isinstance(work, ShardRequest) and isinstance(work.message, Push) and self._long:
            self._passing.append(work)
        else:
            super().put(work)


class MarkedTooEarly(Shard):
    """A push is marked before its last slice: a move between two slices takes the marks and not the rows."""

    def push_steps(self, message: Push, shares: Any = None) -> Any:
        steps, record = super().push_steps(message, shares), self.marks.record
        units = self.owned & (1 << self.partitions) - 1
        yield
        self.marks.record = lambda *_: None  # type: ignore[method-assign]
        try:
            result = yield from steps
        finally:
            self.marks.record = record  # type: ignore[method-assign]
        record(message.stream, message.number, units)
        return result


def test_the_simulator_catches_pushes_that_pass_a_half_applied_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.cluster.server.ShardTurns", PushesPass)
    assert caught(Planted())


def test_the_simulator_catches_marks_of_units_that_a_push_has_not_touched() -> None:
    assert caught(Planted(make_shard=MarkedTooEarly))
