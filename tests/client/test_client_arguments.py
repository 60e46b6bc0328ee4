"""A client refuses arguments that it can't take in one line, before anything is begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pslib.client.client import Client
from pslib.errors import ConfigurationError
from pslib.storage import place_of
from pslib.table.tables import TableSpec
from tests.support.clients import KEYS, PLAIN, SPEC, keys_of, ones, rows_of, set_up_client

client = pytest.fixture(set_up_client)

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
    "shows of a table that is not pushed": (
        lambda c: c.push({"plain": (keys_of(1), ones(1, 2))}, shows={"palin": ones(1)[0]}),
        r"shows: expected tables of this push, \['plain'\], got 'palin'",
    ),
    "clicks of a table that is not pushed": (
        lambda c: c.push({"plain": (keys_of(1), ones(1, 2))}, clicks={"item": ones(1)[0]}),
        r"clicks: expected tables of this push, \['plain'\], got 'item'",
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
    "two tables of one name": (
        lambda c: c.setup([PLAIN, TableSpec("new", PLAIN.parts), TableSpec("new", SPEC.parts)]),
        r"tables: expected one description of new, got two: it has parts \['x'\], got \['w', 'v'\]; give one",
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


MISTAKES = {
    "a table that is not there": (lambda c: c.pull({"nothing": KEYS}), "table 'nothing' is unknown"),
    "a push to no table": (lambda c: c.push({"nothing": (KEYS, ones(2))}), "table 'nothing' is unknown"),
    "an erasure in no table": (lambda c: c.erase({"nothing": KEYS}), "table 'nothing' is unknown"),
    "signed keys": (
        lambda c: c.pull({"plain": KEYS.astype(np.int64)}),
        "expected (n,) uint64, got (2,) int64",
    ),
    "keys of two dimensions": (
        lambda c: c.pull({"plain": KEYS[None]}),
        "expected (n,) uint64, got (1, 2) uint64",
    ),
    "a list of keys": (lambda c: c.pull({"plain": [1, 2]}), "expected (n,) uint64, got list"),
    "one key": (lambda c: c.erase({"plain": np.uint64(1)}), "expected (n,) uint64, got uint64"),
    "pushed signed keys": (lambda c: c.push({"plain": (KEYS.astype(np.int32), ones(2, 2))}), "(2,) int32"),
    "too few gradients": (
        lambda c: c.push({"plain": (KEYS, ones(1, 2))}),
        "expected (2, 2) float32, got (1, 2)",
    ),
    "too many columns": (
        lambda c: c.push({"plain": (KEYS, ones(2, 3))}),
        "expected (2, 2) float32, got (2, 3)",
    ),
    "float64 gradients": (
        lambda c: c.push({"plain": (KEYS, np.ones((2, 2)))}),
        "expected (2, 2) float32, got (2, 2) float64",
    ),
    "a list of gradients": (lambda c: c.push({"plain": (KEYS, [[1, 2], [3, 4]])}), "got list"),
    "a short dense gradient": (
        lambda c: c.push({}, ones(1, 9)[0]),
        "expected (10,) float32, got (9,) float32",
    ),
    "a dense list": (lambda c: c.push({}, [1.0] * 10), "expected (10,) float32, got list"),
    "a dense gradient of float64": (
        lambda c: c.push({}, np.ones(10)),
        "expected (10,) float32, got (10,) float64",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_changes_nothing(client: Client, mistake: str) -> None:
    call, text = MISTAKES[mistake]
    with pytest.raises(ConfigurationError) as caught:
        call(client)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    for _ in range(3):
        client.push({"plain": (keys_of(1), ones(1, 2))}).wait(5.0)
    assert rows_of(client, 1, 2) == [[-3, -3], [0, 0]]
    stats = client.stats()
    assert stats["pushes_applied"] == client.session.pushes_sent == 3
    assert client.session.acked_below(client._stream) == 3
