"""What a client is given that it can't take: one line, before anything is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pslib.client.client import Client
from pslib.errors import ConfigurationError
from pslib.places import place_of
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import PartSpec, TableSpec
from tests.clusters import cluster_of

PLAIN = TableSpec("plain", (PartSpec("x", 2, SGD(1.0), Constant(0.0)),))


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def ones(rows: int, dim: int = 4) -> np.ndarray:
    return np.ones((rows, dim), np.float32)


@pytest.fixture
def client() -> Iterator[Client]:
    with cluster_of(1) as running:
        client = running.client()
        client.setup([PLAIN])
        yield client
        client.close()


WRONG_ARGUMENTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "keys without a table": (lambda c: c.pull(keys_of(1)), r"keys: expected a dict .* got \(1,\) uint64"),
    "erase without a table": (lambda c: c.erase(None), "keys: expected a dict .* got NoneType"),
    "gradients without a table": (lambda c: c.push(ones(1)), "gradients: expected a dict"),
    "keys alone": (lambda c: c.push({"plain": keys_of(1, 2)}), "gradients of plain: expected a pair"),
    "three values": (
        lambda c: c.push({"plain": (keys_of(1), ones(1, 2), ones(1))}),
        "of plain: expected a pair .*, got 3 values",
    ),
    "a name that is a text": (
        lambda c: c.push({"plain": (keys_of(1), ones(1, 2))}, name="x"),
        "name: expected a PushName",
    ),
    "no manner": (
        lambda c: c.push({"plain": (keys_of(1), ones(1, 2))}, manner=None),
        "manner: expected a Manner",
    ),
    "a pull that is no Pulled.seen": (
        lambda c: c.push({"plain": (keys_of(1), ones(1, 2))}, since={0: "x"}),
        "since: expected `pulled.seen` of a pull, got",
    ),
    "a step below 0": (lambda c: c.pull({"plain": keys_of(1)}, step=-1), r"step: .* got -1"),
    "a broken step": (lambda c: c.maintain("plain", step=1.5), r"step: .* got 1\.5"),
    "a time that is no number": (
        lambda c: c.pull({"plain": keys_of(1)}, time_s=np.nan),
        "time_s: .* got nan",
    ),
    "no time": (lambda c: c.maintain("plain", time_s=None), "time_s: .* got None"),
    "one table, not in a list": (
        lambda c: c.setup(PLAIN),
        "tables: expected a list of TableSpec, got a TableSpec",
    ),
    "the name of a table": (
        lambda c: c.setup(["plain"]),
        r"tables: expected a list of TableSpec, got \['plain'\]",
    ),
    "a length for dense parameters": (
        lambda c: c.setup([PLAIN], 5),
        "dense: expected a DenseSpec or None, got 5",
    ),
    "first values that are a text": (
        lambda c: c.setup([PLAIN], None, "x"),
        "initial_dense: expected an array or None, got 'x'",
    ),
    "a list of tables where one belongs": (
        lambda c: c.maintain(["t"]),
        r"table: expected a text, got \['t'\]",
    ),
    "a number for tables": (
        lambda c: c.load("x", tables=5),
        "tables: expected a list of texts or None, got 5",
    ),
    "a name for tables": (lambda c: c.load("x", tables="t"), r"tables: .* got 't': write \['t'\]"),
    "a folder that is no text": (lambda c: c.save_files(5, "s"), "path: expected a text, got 5"),
    "no folder": (lambda c: c.load(None), "path: expected a text, got None"),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_an_argument_of_another_kind_is_told_in_one_line_and_nothing_is_begun(
    client: Client, case: str
) -> None:
    call, line = WRONG_ARGUMENTS[case]
    with pytest.raises(ConfigurationError, match=line):
        call(client)
    assert not client.endpoint.calls_open
    assert client.stats()["pushes_applied"] == 0


def test_a_step_may_be_a_numpy_integer(client: Client) -> None:
    client.push({"plain": (keys_of(1), ones(1, 2))}, step=np.int64(3)).wait()
    assert client.pull({"plain": keys_of(1)}, step=np.uint32(4)).wait().rows["plain"].tolist() == [[-1, -1]]


@pytest.mark.parametrize("path", ["", None, 5, b"saved"])
def test_a_path_that_is_none_is_refused_before_the_current_folder_gets_files(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="path: expected the path of a file"):
        place_of(path)


@pytest.mark.parametrize("timeout_s", ["x", -1, np.nan, np.inf, True, [1]])
def test_a_wait_is_so_many_seconds(client: Client, timeout_s: Any) -> None:
    pending = client.pull({"plain": keys_of(1)})
    with pytest.raises(ConfigurationError, match="timeout_s: expected seconds, 0 or more, or None, got"):
        pending.wait(timeout_s)
    pending.wait(10)
