"""A shard's thread and the thread that receives: which one serves what, and when nothing is left to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from cython_ext.common.cores import turn_s
from pslib.server.requests import ShardRequest
from pslib.server.shard_thread import DRAIN_FROM, TURN_S, ShardThread
from pslib.wire.messages import Pull
from pslib.wire.quantization import QuantizedRows
from tests.support.simulated.protocol_worlds import NO_BLOCKS, OneServer, setup_of
from tests.support.waiting import WAIT_S, wait_until
from tests.values.test_cores import HEEDS, in_thread


class Working:
    """A thread of a shard, and what it is done with."""

    def __init__(self) -> None:
        server = OneServer(setup=setup_of(t=1))
        self.done: list[ShardRequest] = []
        self.core_turns_s: list[float | None] = []
        self.failed: list[BaseException] = []
        self.thread = ShardThread(server.shards[0], self.take, self.failed.append)

    def take(self, request: ShardRequest, _index: int, _result: Any) -> None:
        self.done.append(request)
        self.core_turns_s.append(turn_s())

    def has_done(self, count: int) -> bool:
        return len(self.core_turns_s) == count

    def put(self, keys: int, count: int = 1) -> None:
        for _ in range(count):
            message: Any = Pull({"t": np.arange(keys, dtype=np.uint64)}, NO_BLOCKS)
            self.thread.put(ShardRequest(b"", 1, message, (0,), taker=lambda _answer: None))

    def taken_in(self, count: int) -> None:
        """Return when the thread knows of so many."""
        wait_until(
            lambda: len(self.thread._turns) >= count, WAIT_S, f"{count} requests to be taken in", 0.001
        )


@pytest.fixture
def working() -> Iterator[Working]:
    one = Working()
    yield one
    one.thread.finish()
    assert one.failed == []


def test_nothing_is_served_beside_work_that_waits_or_is_under_way(working: Working) -> None:
    message: Any = Pull({"t": np.arange(4, dtype=np.uint64)}, NO_BLOCKS)
    request = ShardRequest(b"", 1, message, (0,), rows={"t": QuantizedRows.empty(4, 1, "float32")})
    assert working.thread.serve_now(request) is not None
    working.thread.given += 1  # in the queue, and the thread has not woken up yet
    assert working.thread.serve_now(request) is None
    assert not working.thread.turn.locked()
    working.thread.given -= 1
    with working.thread.turn:
        working.put(4)
        assert working.thread.serve_now(request) is None
    working.thread.finish()
    assert len(working.done) == 1
    assert working.thread.given == working.thread.settled == 1
    assert working.thread.serve_now(request) is not None
    assert not working.thread.turn.locked()


@HEEDS
def test_the_threads_turns_on_its_core_are_short_while_a_long_request_is_here_and_at_no_other_time(
    working: Working,
) -> None:
    for keys in (4, 20_000, 4):
        working.put(keys)
        done = len(working.core_turns_s) + 1
        wait_until(partial(working.has_done, done), WAIT_S, "the request to be done")
    before, beside_a_long_one, behind_it = working.core_turns_s
    assert beside_a_long_one == TURN_S
    assert before == behind_it == in_thread(turn_s)


class Watched(threading.Event):
    """A future that records a wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.set()
        return super().wait(timeout)


def test_many_short_requests_that_wait_are_served_to_the_last_before_more_are_taken(working: Working) -> None:
    thread = working.thread
    wait_until(thread._drained.is_set, WAIT_S, "the thread to begin, with nothing to do")
    thread._drained = drained = Watched()

    def left_after_drain() -> int:
        thread.drain(WAIT_S)
        return thread.given - thread.settled

    with thread.turn, ThreadPoolExecutor(1) as pool:
        working.put(4)
        working.taken_in(1)  # it has woken for this one, and knows of no other when that is done
        working.put(4, 20 * DRAIN_FROM)
        began_s = time.monotonic()
        thread.drain(0.05)
        assert time.monotonic() - began_s >= 0.05, "no thread is free to do it"
        drained.waited.clear()
        # Asked before any is done: of those that are left when few wait it waits for none.
        left = pool.submit(left_after_drain)
        assert drained.waited.wait(WAIT_S)
        thread.turn.release()
        try:
            assert left.result(WAIT_S) == 0
        finally:
            thread.turn.acquire()
    assert time.monotonic() - began_s < WAIT_S


@pytest.mark.parametrize(("short", "long"), [(2, 0), (DRAIN_FROM + 2, 1)])
def test_a_few_or_those_behind_a_long_one_do_not_keep_the_server_from_taking_more(
    working: Working, short: int, long: int
) -> None:
    """Short pulls have their turn between the slices of a long request, so they must be taken in."""
    with working.thread.turn:
        working.put(20_000, long)
        working.taken_in(long)
        working.put(4, short)
        began_s = time.monotonic()
        working.thread.drain(WAIT_S)
        assert time.monotonic() - began_s < WAIT_S / 2


def test_a_thread_that_ends_has_done_all_that_it_was_given(working: Working) -> None:
    working.put(4, 5)
    working.thread.finish()
    assert len(working.done) == working.thread.settled == 5
