"""Set-ups as a server takes them from any client, in any language: one description a name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pslib.errors import LogFullError
from pslib.server.rejoin import Rejoin
from pslib.server.session import ServerSession
from pslib.shard.shard import Shard
from pslib.table.descriptions import model_description
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from pslib.update_log import RollingLog
from pslib.update_log.shard_log import ShardLog, recover
from pslib.wire.messages import Done, Failure, Setup
from tests.support.simulated.files import SimulatedDisk
from tests.support.simulated.protocol_worlds import (
    BITS,
    CODEC,
    NO_FLOATS,
    OneServer,
    keys_in,
    push_ones,
    setup_of,
    values_of,
)

BLOCKS = 4
SHARDS = pytest.mark.parametrize("shards", [1, 3])
OTHERS = pytest.mark.parametrize(
    ("other", "difference"),
    [
        (setup_of(t=2), "table t exists with another description: part v: it has dim 1, got 2"),
        (setup_of(new=1, t=2), "table t exists with another description: part v: it has dim 1, got 2"),
        (setup_of(4, new=1, t=1), "dense parameters exist with another description: it has length 3, got 4"),
    ],
    ids=["a table", "a table behind a new one", "dense parameters"],
)


def setup(*specs: TableSpec) -> Setup:
    return Setup({"tables": [spec.to_dict() for spec in specs]}, 0, {}, NO_FLOATS)


def spec(name: str, dim: int) -> TableSpec:
    return TableSpec(name, (PartSpec("v", dim, SGD(1.0), Constant(0.0)),))


def dims(server: OneServer) -> list[dict[str, int]]:
    """The tables that each shard has."""
    return [{name: one.dim for name, one in shard.tables.items()} for shard in server.shards]


def assert_refused(answer: Any, difference: str) -> None:
    assert isinstance(answer, Failure)
    assert answer.code == "configuration"
    assert difference in answer.text
    assert "\n" not in answer.text


class LoggedServer(OneServer):
    """A server with a log for each of its shards."""

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.disks = [SimulatedDisk(index) for index in range(shards)]
        self.shards = [Shard(BITS, BLOCKS, index, shards) for index in range(shards)]
        logs = [RollingLog(disk.files("log"), {"shard": 0}) for disk in self.disks]
        self.logs = [ShardLog(log, shard, 1 << 40) for log, shard in zip(logs, self.shards, strict=True)]
        for shard in self.shards:
            shard.own(np.arange((1 << BITS) + BLOCKS))
        self.session = ServerSession(CODEC, self.shards)

    def come_back(self) -> None:
        """Go on as the process that has read these logs."""
        shards = len(self.shards)
        self.shards = [Shard(BITS, BLOCKS, index, shards) for index in range(shards)]
        for log, disk, shard in zip(self.logs, self.disks, self.shards, strict=True):
            log.flush()
            recover(RollingLog(disk.files("log"), {"shard": 0}), shard, lambda *_: None)
        self.session = ServerSession(CODEC, self.shards)


@SHARDS
@OTHERS
def test_what_is_there_is_set_up_again_or_refused_and_keeps_its_rows_also_after_a_comeback(
    shards: int, other: Setup, difference: str
) -> None:
    server, keys = LoggedServer(shards), keys_in(0, 5, 9)
    assert server.ask(setup_of(3, t=1)) == Done()
    server.ask(push_ones(0, keys))
    for comes_back in (False, True):
        if comes_back:
            server.come_back()
        for _copy in range(2):
            assert_refused(server.ask(other), difference)
        assert dims(server) == [{"t": 1}] * shards
        assert server.ask(setup_of(3, t=1)) == Done()
        assert values_of(server, keys) == [1.0] * 3


@SHARDS
def test_two_descriptions_of_one_name_in_one_set_up_are_refused(shards: int) -> None:
    """The first one counted, and the client was told that all was done."""
    server = OneServer(shards)
    both = setup(spec("new", 1), spec("t", 2), spec("t", 3))
    assert_refused(server.ask(both), "one description of t, got two: part v: it has dim 2, got 3")
    assert dims(server) == [{}] * shards
    assert server.ask(setup(spec("t", 2), spec("t", 2))) == Done()


class FullLog:
    """A journal whose disk has no space."""

    def append(self, *_entries: Any) -> None:
        raise LogFullError("full")


def of_model(name: str) -> Setup:
    """Table t as one of a model."""
    model = model_description("t", name, {}, [])
    return Setup({"tables": [spec("t", 2).to_dict()], "models": [model]}, 0, {}, NO_FLOATS)


@pytest.mark.parametrize("full", [0, 1])
@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (setup_of(t=2), setup(spec("new", 1), spec("t", 3)), "it has dim 2, got 3"),
        (setup_of(3, t=2), setup_of(4, new=1), "it has length 3, got 4"),
        (of_model("A"), of_model("B"), "it is A, got B"),
    ],
    ids=["tables", "dense parameters", "models"],
)
def test_what_one_shard_alone_could_write_down_is_that_of_its_description(
    full: int, one: Setup, other: Setup, difference: str
) -> None:
    """Also when its server was killed in between: two descriptions of it could be on one server, for ever."""
    server = OneServer(2)
    server.shards[full].journal = FullLog()  # type: ignore[assignment]
    assert server.ask(one).code == "log-full"
    server.shards[full].journal = None
    half = dims(server)
    assert half[full] == {}
    assert_refused(server.ask(other), difference)
    assert dims(server) == half
    assert server.ask(one) == Done()
    assert dims(server) == [{"t": 2}] * 2


@pytest.mark.parametrize("senseless", [{}, {"tables": 5}, {"tables": [{"name": "t"}]}, "two"])
def test_a_set_up_that_makes_no_sense_ends_no_server_that_comes_back_without_what_it_knew(
    senseless: Any,
) -> None:
    server = OneServer(2)
    begins = {"loads": [], "done_below": 0, "streams": [], "released": [], "moment": ""}
    for shard in server.shards:
        Rejoin.strip(shard)
    server.session.rejoin = Rejoin(
        begins, 1, server.shards, lambda *_: None, lambda index, work: work(server.shards[index])
    )
    two = setup(spec("t", 2), spec("t", 3))
    assert isinstance(server.ask(two if senseless == "two" else Setup(senseless, 0, {}, NO_FLOATS)), Failure)
    assert dims(server) == [{}] * 2
    server.session.receive(b"me", [bytes(frame) for frame in CODEC.encode(1, setup_of(t=1))])
    assert dims(server) == [{"t": 1}] * 2
    assert server.ask(setup_of(t=1)) == Done()
