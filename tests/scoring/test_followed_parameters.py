"""Parameters that follow a cluster: whole versions of the cluster's rows, exactly, whatever their storage."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pslib.client.following import Following, Piece, Update
from pslib.errors import ConfigurationError
from pslib.scoring.followed_parameters import FollowedParameters
from pslib.table.initializers import Uniform
from pslib.table.optimizers import SGD, Adagrad, AdamW
from pslib.table.policies import Compact
from pslib.table.tables import PartSpec, TableSpec
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.wire.messages import Erase, Pull, Push, Setup
from tests.support.simulated.protocol_worlds import OneServer
from tests.support.waiting import PATIENCE_S

LAYOUT = DenseLayout({"w": (2, 3), "b": (2,)})
PARTS = (PartSpec("w", 1, Adagrad(), Uniform(0.1)), PartSpec("v", 16, Adagrad(), Uniform(0.1)))
SPEC = TableSpec("t", PARTS, seed=5)
BITS, NO_BLOCKS = 4, np.empty(0, np.uint32)
KEYS = np.arange(500, dtype=np.uint64)


def update_of(keys: Any, value: float, whole: Any = ()) -> Update:
    keys = np.array(keys, np.uint64)
    rows = np.full((keys.size, 17), value, np.float32)
    pieces = [Piece(keys, rows, np.array(whole, np.uint32))]
    return Update(pieces, np.full(LAYOUT.length, value, np.float32), 0)


def next_update(server: OneServer, reader: Following) -> Update:
    reader.begin(["s"])
    while request := reader.next_request():
        reader.take("s", server.ask(request[1]))
    assert reader.is_complete
    return reader.take_update()


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16"])
def test_rows_of_every_storage_type_are_the_bits_of_the_server(storage: str) -> None:
    spec = replace(SPEC, storage=storage)
    setup = Setup({"tables": [spec.to_dict()]}, 8, SGD().to_dict(), np.ones(8, np.float32))
    server, reader = OneServer(2, setup=setup), Following("t", 17, 8, 16, 4)
    parameters = FollowedParameters(spec, LAYOUT, BITS)
    choice = np.random.default_rng(0)
    for number in range(5):
        some = choice.choice(KEYS, 200, replace=False)
        gradients = choice.standard_normal((200, 17)).astype(np.float32)
        server.ask(
            Push(7, number, 0, 0, 0, {"t": some}, {"t": gradients}, NO_BLOCKS, np.empty(0, np.float32))
        )
        server.ask(Erase(8, number, 0, 0, 0, {"t": choice.choice(KEYS, 20, replace=False)}))
        parameters.apply(next_update(server, reader), float(number))
        expected = server.ask(Pull({"t": KEYS}, NO_BLOCKS)).rows["t"]
        assert parameters.rows(KEYS).tobytes() == expected.tobytes()
        rows = sum(shard.stores["t"].rows for shard in server.shards)
        assert parameters.count == parameters.keys().size == rows
        assert parameters.missing(KEYS) == KEYS.size - rows
    assert parameters.dense["w"].tolist() == [[1.0] * 3] * 2
    assert (parameters.version, parameters.as_of_s) == (5, 4.0)


def test_a_whole_partition_takes_the_place_of_its_rows() -> None:
    parameters = FollowedParameters(SPEC, LAYOUT, BITS)
    parameters.apply(update_of(range(100), 1.0), 0.0)
    absent = FollowedParameters(SPEC, LAYOUT, BITS).rows(KEYS[:100])
    parameters.apply(update_of([], 2.0, range(8)), 0.0)
    rows = parameters.rows(KEYS[:100])
    gone = (rows == absent).all(axis=1)
    assert 0 < gone.sum() < 100
    assert parameters.count == 100 - gone.sum()


def test_a_version_waits_for_the_reader_and_the_next_reader_for_the_version() -> None:
    parameters = FollowedParameters(SPEC, LAYOUT, BITS)
    parameters.apply(update_of(range(10), 1.0), 0.0)
    applied = threading.Thread(target=parameters.apply, args=(update_of(range(10), 2.0), 1.0))
    seen: list[tuple[float, float]] = []

    def read() -> None:
        with parameters.reading():
            seen.append((float(parameters.rows(KEYS[:1])[0, 0]), float(parameters.dense["b"][0])))

    with parameters.reading():
        applied.start()
        while not parameters._gate._written:
            applied.join(0.001)
        second = threading.Thread(target=read)
        second.start()
        assert parameters.rows(KEYS[:10]).tolist() == [[1.0] * 17] * 10
        assert parameters.dense["b"].tolist() == [1.0, 1.0]
        assert parameters.version == 1
    applied.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert seen == [(2.0, 2.0)]
    assert parameters.version == 2


def test_readers_never_see_two_versions_in_one_block() -> None:
    parameters = FollowedParameters(SPEC, LAYOUT, BITS)
    parameters.apply(update_of(range(200), 0.5), 0.0)
    over, mixed, blocks = threading.Event(), list[set[float]](), list[int]()

    def read() -> None:
        count = 0
        while not over.is_set():
            with parameters.reading():
                found = {float(one) for _ in range(3) for one in np.unique(parameters.rows(KEYS[:200]))}
                found |= set(parameters.dense["w"].ravel().tolist())
            count += 1
            if len(found) != 1:
                mixed.append(found)
        blocks.append(count)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 200):
        parameters.apply(update_of(range(200), number / 256), 0.0)
    over.set()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert len(blocks) == 2
    assert min(blocks) > 0
    assert not mixed


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (replace(SPEC, parts=(PartSpec("w", 1, AdamW(weight_decay=0.1)),)), "part w has weight decay"),
        (replace(SPEC, compact=Compact("v", shows=3)), "it has narrow rows"),
        (replace(SPEC, storage="int8"), "its int8 rows come as floats"),
    ],
)
def test_a_table_whose_rows_can_not_be_followed_is_refused_in_a_line(table: TableSpec, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        FollowedParameters(table, LAYOUT, BITS)
    assert "without --follow" in str(caught.value)
    assert "\n" not in str(caught.value)
