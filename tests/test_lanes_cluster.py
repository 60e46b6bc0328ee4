"""Calls of a client by lanes: what is lost with one is asked again by ZeroMQ, and applied once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pslib.config import Timing
from pslib.transport import ZmqTransport
from tests.clusters import cluster_of
from tests.links import LOOPBACK
from tests.test_client import PLAIN
from tests.waiting import WAIT_S

KEYS = np.arange(64, dtype=np.uint64)


@pytest.fixture(params=[(1, 1), (2, 1), (2, 2)], ids=["one server", "two", "two of two shard threads"])
def running(request: pytest.FixtureRequest) -> Iterator[Any]:
    servers, shard_threads = request.param
    transport = ZmqTransport()
    timing = Timing(retry_s=0.1)
    with cluster_of(
        servers, transport=transport, listen=LOOPBACK, shard_threads=shard_threads, timing=timing
    ) as one:
        yield one
    transport.close()


def push(client: Any) -> Any:
    return client.push({"plain": (KEYS, np.ones((KEYS.size, 2), np.float32))})


def pulled(client: Any) -> float:
    """What all rows hold."""
    rows = client.pull({"plain": KEYS}).wait().rows["plain"]
    (value,) = np.unique(rows).tolist()
    return float(-value)


def test_short_calls_go_by_lanes_and_their_pushes_are_applied_once_each(running: Any) -> None:
    client = running.client(Timing(retry_s=WAIT_S, retry_max_s=WAIT_S))  # which a slow answer does not take
    client.setup([PLAIN])
    for done in range(1, 101):
        push(client).wait()
        assert pulled(client) == done
    link = client.endpoint._link
    assert len(link.lanes) == len(running.embedded.servers)
    assert client.endpoint.requests.resent == 0
    for server in running.embedded.servers:
        assert len(server._link.lanes) == 1


def test_many_calls_on_their_way_by_many_threads_are_all_answered(running: Any) -> None:
    client = running.client()
    client.setup([PLAIN])

    def work() -> None:
        for one in [push(client) for _ in range(100)]:
            one.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pulled(client) == 400


@pytest.mark.parametrize("end", ["the client's", "the servers'"])
@pytest.mark.parametrize("breaks_at", [2, 17, 38])
def test_lanes_that_break_cost_no_push_and_double_none(running: Any, end: str, breaks_at: int) -> None:
    client = running.client()
    client.setup([PLAIN])
    for _ in range(2):
        push(client).wait()
    ends = [(client.endpoint._link, client.endpoint.lock)]
    if end == "the servers'":
        ends = [(server._link, server._lock) for server in running.embedded.servers]
    waiting = []
    for number in range(40):
        waiting.append(push(client))
        if number == breaks_at:
            for link, lock in ends:
                with lock:
                    for lane in range(1, 10):
                        link.lanes.drop(b"\0" + lane.to_bytes(8, "little"))
                    assert len(link.lanes) == 0
    for one in waiting:
        one.wait()
    assert pulled(client) == 42
    assert not client.endpoint._link.lanes


MANY = np.arange(600, dtype=np.uint64)


def test_a_short_pull_sees_what_its_client_has_sent_before_it_by_zeromq(running: Any) -> None:
    """Though nobody has waited for it: a push of many rows, an erase."""
    client = running.client()
    client.setup([PLAIN])
    ones, unseen = np.ones((MANY.size, 2), np.float32), 0
    for done in range(1, 101):
        pushed = client.push({"plain": (MANY, ones)})
        unseen += pulled(client) != done
        pushed.wait()
    for _ in range(100):
        push(client).wait()
        erased = client.erase({"plain": KEYS})
        unseen += pulled(client) != 0
        erased.wait()
    assert unseen == 0
    assert len(client.endpoint._link.lanes.ways) == len(running.embedded.servers)


def test_an_erase_follows_a_short_push_that_nobody_has_waited_for(running: Any) -> None:
    client = running.client()
    client.setup([PLAIN])
    push(client).wait()
    left = 0
    for _ in range(100):
        pushed = push(client)
        erased = client.erase({"plain": KEYS})
        for one in (erased, pushed):
            one.wait()
        left += pulled(client) != 0
    assert left == 0
