"""Calls of one client keep their order at every server, without a wait between them and from many threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pslib.config import Timing
from pslib.transport import ZmqTransport
from tests.support.clients import PLAIN
from tests.support.clusters import cluster_of
from tests.support.links import LOOPBACK

KEYS = np.arange(64, dtype=np.uint64)
MANY = np.arange(600, dtype=np.uint64)
"""A push of so many rows is queued for shard threads; a pull of `KEYS` may be served at once."""


@pytest.fixture(params=[(1, 1), (2, 1), (2, 2)], ids=["one server", "two", "two of two shard threads"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    servers, shard_threads = request.param
    transport, timing = ZmqTransport(), Timing(retry_s=0.1)
    with cluster_of(
        servers, transport=transport, listen=LOOPBACK, shard_threads=shard_threads, timing=timing
    ) as one:
        joined = one.client()
        joined.setup([PLAIN])
        yield joined
    transport.close()


def push(client: Any, keys: np.ndarray[Any, Any] = KEYS) -> Any:
    return client.push({"plain": (keys, np.ones((keys.size, 2), np.float32))})


def pulled(client: Any) -> float:
    """The value of all rows, which are equal: minus the number of pushes."""
    rows = client.pull({"plain": KEYS}).wait().rows["plain"]
    (value,) = np.unique(rows).tolist()
    return float(-value)


def test_a_pull_sees_the_push_of_many_rows_before_it(client: Any) -> None:
    for done in range(1, 51):
        pushed = push(client, MANY)
        assert pulled(client) == done
        pushed.wait()


def test_a_pull_sees_the_erase_before_it(client: Any) -> None:
    for _ in range(50):
        push(client).wait()
        erased = client.erase({"plain": KEYS})
        assert pulled(client) == 0
        erased.wait()


def test_an_erase_follows_the_push_before_it(client: Any) -> None:
    for _ in range(50):
        pushed = push(client)
        erased = client.erase({"plain": KEYS})
        for one in (erased, pushed):
            one.wait()
        assert pulled(client) == 0


def test_calls_of_many_threads_are_all_answered_and_count_once(client: Any) -> None:
    def work() -> None:
        for one in [push(client) for _ in range(50)]:
            one.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pulled(client) == 200
