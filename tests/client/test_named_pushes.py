"""A push that one server of two has refused: under its name it is sent again and counts once."""

from __future__ import annotations

import numpy as np
import pytest

from cython_ext.common.hashing import partition_of
from pslib.client.client import Client
from pslib.errors import ConfigurationError, MemoryLimitError
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from tests.support.clients import client_of
from tests.support.clusters import Trainers

SPEC = TableSpec("t", (PartSpec("v", 64, SGD(1.0), Constant(0.0)),))
KEYS = np.arange(40_000, dtype=np.uint64)
IS_FIRST = partition_of(KEYS, 7) < 64
BOTH = np.concatenate([KEYS[IS_FIRST][:50], KEYS[~IS_FIRST][-50:]])
"""New rows of both servers."""


def ones(keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> dict[str, object]:
    return {"gradients": {"t": (keys, np.full((keys.size, 64), -1.0, np.float32))}}


def values(client: Client) -> list[float]:
    """Return the rows of both servers."""
    rows = client.pull({"t": BOTH}).wait().rows["t"]
    return [float(rows[:50].mean()), float(rows[50:].mean())]


def let(running: Trainers, limit_bytes: int) -> None:
    """Another memory limit of the server that has the second half of all partitions."""
    shards = [server._threads[0].shard for server in running.embedded.servers]
    (room,) = [shard.room for shard in shards if shard.owned >> 64 & 1]
    room.limit_bytes = limit_bytes
    room.forget()


def test_a_push_that_one_server_had_no_room_for_counts_once_under_its_name() -> None:
    with client_of(server_memory_bytes=64 << 20) as (client, running):
        client.setup([SPEC])
        client.push(**ones(KEYS[~IS_FIRST][:1000]), name=client.new_name()).wait()
        let(running, 1)
        name = client.new_name()
        for _ in range(2):
            with pytest.raises(MemoryLimitError):
                client.push(**ones(BOTH), name=name).wait()
            assert values(client) == [1.0, 0.0]
        client.push(**ones(KEYS[IS_FIRST][100:200]), name=client.new_name()).wait()  # others go on meanwhile
        assert client.session.acked_below(name.stream) == name.number
        let(running, 64 << 20)
        for _ in range(2):
            client.push(**ones(BOTH), name=name).wait()
            assert values(client) == [1.0, 1.0]
        assert client.session.acked_below(name.stream) == name.number + 2


def test_names_of_one_client_are_distinct_and_need_tables() -> None:
    with client_of(1) as (client, _running):
        with pytest.raises(ConfigurationError, match="setup"):
            client.new_name()
        client.setup([SPEC])
        names = [client.new_name() for _ in range(3)]
        client.setup([SPEC, TableSpec("u", SPEC.parts)])  # which begins new streams
        names += [client.new_name() for _ in range(3)]
        assert len(set(names)) == 6
        assert not {name.stream for name in names} & {client.session.own_stream}
        client.push({"u": (KEYS[:1], np.ones((1, 64), np.float32))}, name=names[0]).wait()
