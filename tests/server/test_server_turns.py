"""A server's turns by its socket: short requests, others between them, and the last turn of all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pslib.client.membership import MemberHandle
from pslib.cluster import Watcher
from pslib.server.server import TICK_S
from pslib.server.shard_thread import DRAIN_FROM
from pslib.transport import ZmqTransport
from pslib.transport.router import BATCH_MAX
from pslib.wire.messages import Pull, Pulled, Push, Stats
from tests.support.clients import PLAIN
from tests.support.clusters import cluster_of
from tests.support.links import LOOPBACK, come
from tests.support.waiting import PATIENCE_S, WAIT_S, wait_until

NO_BLOCKS, NO_FLOATS = np.empty(0, np.uint32), np.empty(0, np.float32)


def keys_to(end: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.arange(end, dtype=np.uint64)


class Asked:
    """A server of one shard, and a link to it without retries."""

    def __init__(self, running: Any, transport: ZmqTransport) -> None:
        self.client = running.client()
        self.client.setup([PLAIN])
        self.client.push({"plain": (keys_to(4), np.ones((4, 2), np.float32))}).wait()
        self.server, self.link = running.embedded.servers[0], transport.connect()
        self.codec = self.client.endpoint._codec
        self.watcher = Watcher(running.embedded.address, running.embedded.cluster_id, transport=transport)

    def send(self, number: int, message: Any) -> None:
        self.link.send(self.server.address, self.codec.encode(number, message))

    def arrived(self) -> None:
        """Return when all that was sent is there: ZeroMQ's one thread serves all sockets that have something.

        A question to the coordinator and its answer take some four rounds of it, a request of 24 KB three.
        """
        for _ in range(50):
            self.watcher.status()

    def answers(self, count: int) -> dict[int, Any]:
        came: dict[int, Any] = {}

        def all_came() -> bool:
            for _peer, frames in come(self.link, 0.1):
                request_id, message = self.codec.decode(frames)
                came[request_id] = message
            return len(came) >= count

        wait_until(all_came, WAIT_S, lambda: f"{count} answers, of which {sorted(came)} came", pause_s=0)
        return came


@pytest.fixture
def asked() -> Iterator[Asked]:
    transport = ZmqTransport()
    with cluster_of(1, transport=transport, listen=LOOPBACK) as running:
        one = Asked(running, transport)
        yield one
        one.watcher.close()
        one.link.close()
        one.client.close()
    transport.close()


def test_short_requests_and_others_between_them_are_all_answered(asked: Asked) -> None:
    few, many = Pull({"plain": keys_to(4)}, NO_BLOCKS), Pull({"plain": keys_to(3000)}, NO_BLOCKS)
    for number in range(1, 61):
        asked.send(number, (few, few, Stats(), many)[number % 4])
    answers = asked.answers(60)
    assert sorted(answers) == list(range(1, 61))
    for number, answer in answers.items():
        if number % 4 < 2:
            assert isinstance(answer, Pulled)
            assert answer.rows["plain"].tolist() == [[-1.0, -1.0]] * 4


def test_what_has_come_is_answered_before_a_server_leaves(asked: Asked) -> None:
    many = Pull({"plain": keys_to(3000)}, NO_BLOCKS)
    with asked.server._lock:
        for number in range(1, 7):
            asked.send(number, many)
        asked.arrived()
        asked.server.stop()
    assert sorted(asked.answers(6)) == [1, 2, 3, 4, 5, 6]


def test_requests_that_come_while_many_wait_are_not_handed_over_one_after_the_other(asked: Asked) -> None:
    """Else the shard's thread would have work for as long as clients go on asking."""
    few, (thread,) = Pull({"plain": keys_to(4)}, NO_BLOCKS), asked.server._threads
    began_s = time.monotonic()
    with thread.turn:
        for _ in range(2 * DRAIN_FROM):
            thread.put(lambda _shard: None)
        before = thread.given
        for number in range(1, 801):
            asked.send(number, few)
        time.sleep(2 * TICK_S)  # time to hand over all, if it did
        given = thread.given - before  # while they wait: later the thread may be as quick as the server
    ticks = 1 + (time.monotonic() - began_s) / TICK_S  # after each the server takes what has come
    assert given < 50 + ticks * BATCH_MAX, "a few, and what heartbeats want"
    assert len(asked.answers(800)) == 800


def test_no_client_is_answered_while_another_may_have_the_servers_place(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause of the whole process a successor may have been told other things."""
    few, looked = Pull({"plain": keys_to(4)}, NO_BLOCKS), threading.Event()

    def always(_self: MemberHandle) -> bool:
        if threading.current_thread().name.startswith("pslib-server"):
            looked.set()
        return True

    asked.server._may_be_followed = True
    with monkeypatch.context() as lost:
        lost.setattr(MemberHandle, "may_be_replaced", property(always))
        assert looked.wait(PATIENCE_S)  # the turn that goes on has begun before
        asked.send(1, few)
        time.sleep(0.3)
        assert come(asked.link, 0.0) == []
    assert list(asked.answers(1)) == [1]
    asked.send(2, few)
    assert list(asked.answers(1)) == [2]


def test_the_sender_of_a_push_that_ends_half_way_hears_of_it_and_no_request_is_served_after_it(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    (thread,) = asked.server._threads
    monkeypatch.setattr(thread.shard.counters, "rows_pushed", None)
    asked.send(
        1,
        Push(
            7, 1, 0, 0, 0, {"plain": keys_to(4)}, {"plain": np.ones((4, 2), np.float32)}, NO_BLOCKS, NO_FLOATS
        ),
    )
    asked.send(2, Pull({"plain": keys_to(4)}, NO_BLOCKS))
    answers = asked.answers(2)
    assert [answers[number].code for number in (1, 2)] == ["internal", "internal"]
    assert "Push (7, 1) ended half-way: TypeError" in thread.shard.broken
    monkeypatch.undo()
    thread.shard.broken = ""


def test_a_client_counts_messages_and_bytes_that_come(asked: Asked) -> None:
    endpoint = asked.client.endpoint
    messages, size = endpoint.messages_received, endpoint.bytes_received
    for _ in range(10):
        asked.client.pull({"plain": keys_to(4)}).wait()
    # a turn counts after it has told the waiting clients
    wait_until(lambda: endpoint.messages_received >= messages + 10, WAIT_S, "ten messages", 0.001)
    assert endpoint.bytes_received >= size + 10 * 4 * 2 * 4
