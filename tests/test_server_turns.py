"""A server's turns by its socket: short requests, others between them, and the last turn of all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pslib.protocol.messages import Pull, Pulled, Stats
from pslib.transport import ZmqTransport
from tests.clusters import cluster_of
from tests.links import LOOPBACK, WAIT_S, come
from tests.test_client import PLAIN

NO_BLOCKS = np.empty(0, np.uint32)


def keys_to(end: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.arange(end, dtype=np.uint64)


class Asked:
    """A server of one shard, and a link to it that nobody asks again by."""

    def __init__(self, running: Any, transport: ZmqTransport) -> None:
        self.client = running.client()
        self.client.setup([PLAIN])
        self.client.push({"plain": (keys_to(4), np.ones((4, 2), np.float32))}).wait()
        self.server, self.link = running.embedded.servers[0], transport.connect()
        self.codec = self.client.endpoint._codec

    def send(self, number: int, message: Any) -> None:
        self.link.send(self.server.address, self.codec.encode(number, message))

    def answers(self, count: int) -> dict[int, Any]:
        came: dict[int, Any] = {}
        until_s = time.monotonic() + WAIT_S
        while len(came) < count and time.monotonic() < until_s:
            for _peer, frames in come(self.link, 0.1):
                request_id, message = self.codec.decode(frames)
                came[request_id] = message
        return came


@pytest.fixture
def asked() -> Iterator[Asked]:
    transport = ZmqTransport()
    with cluster_of(1, transport=transport, listen=LOOPBACK) as running:
        one = Asked(running, transport)
        yield one
        one.link.close()
        one.client.close()
    transport.close()


def test_short_requests_and_others_between_them_are_all_answered(asked: Asked) -> None:
    assert asked.server._serving is not None
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
        time.sleep(0.2)
        asked.server.stop()
    assert sorted(asked.answers(6)) == [1, 2, 3, 4, 5, 6]
