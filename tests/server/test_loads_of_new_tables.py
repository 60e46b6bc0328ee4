"""A load of tables that are not set up, and a client that sets them up in another way meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib.checkpoint import Manifest, commit
from pslib.client.client import Client
from pslib.client.pending import Pending
from pslib.errors import PslibError
from pslib.server.requests import ShardRequest, run_on_shard
from pslib.server.shard_thread import _Loads, load_again
from pslib.shard.shard import Shard
from pslib.table.optimizers import SGD
from pslib.table.tables import DenseSpec, TableSpec
from pslib.wire.fields import Message
from pslib.wire.messages import CheckLoad, DescribeTables, Failure, Load, Setup
from tests.checkpoint.test_checkpoint_policies import save
from tests.server.test_fenced_loads import KEYS, SPEC, push, rows_of
from tests.support.checkpoints import save_tables
from tests.support.clients import client_of, client_with
from tests.support.clusters import Trainers, cluster_of

OTHERS = {
    "that fits": replace(SPEC, storage="bfloat16"),
    "that does not fit": replace(SPEC, parts=(replace(SPEC.parts[0], dim=3),)),
}
MOMENTS = 10
"""The number of questions that a load asks, plus one."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint in which rows are 1."""
    folder = tmp_path_factory.mktemp("saved")
    with client_with(SPEC, servers=2) as client:
        push(client)
        save(client, folder, SPEC)
    return str(folder)


def tables_of(running: Trainers) -> list[dict[str, TableSpec]]:
    """Return the tables of each shard thread of all servers."""
    return [thread.shard.tables for server in running.embedded.servers for thread in server._threads]


def set_up(client: Client, spec: TableSpec) -> Iterator[None]:
    """Set a table up as a client does, a server at a time; once refused it asks no other."""
    message = Setup({"tables": [spec.to_dict()]}, 0, {}, np.empty(0, np.float32))
    for server in client.servers:
        yield
        try:
            client.endpoint.ask(server, message).wait()
        except PslibError:
            return


@pytest.mark.parametrize("other", list(OTHERS))
@pytest.mark.parametrize("first", range(MOMENTS))
def test_no_two_servers_ever_have_different_tables(
    saved: str, monkeypatch: pytest.MonkeyPatch, first: int, other: str
) -> None:
    """The two questions of the set-up come between any two questions of the load."""
    for second in range(first, MOMENTS):
        with cluster_of(2, shard_threads=2) as running:
            loads, other_client = running.client(), running.client()
            steps, moments, ask = set_up(other_client, OTHERS[other]), count(), loads.endpoint.ask

            def ask_late(
                *about: Any, steps: Any = steps, moments: Any = moments, ask: Any = ask, second: int = second
            ) -> Pending[Message]:
                moment = next(moments)
                for when in (first, second):
                    if when == moment:
                        next(steps, None)
                return ask(*about)  # type: ignore[no-any-return]

            next(steps)
            with monkeypatch.context() as patch:
                patch.setattr(loads.endpoint, "ask", ask_late)
                with suppress(PslibError):
                    loads.load(saved)
            assert next(moments) < MOMENTS
            list(steps)
            tables = tables_of(running)
            assert all(one == tables[0] for one in tables), (first, second)
            loads.close()
            other_client.close()


def test_a_load_makes_tables_as_the_checkpoint_has_them(saved: str) -> None:
    with client_of(shard_threads=2) as (client, running):
        assert client.load(saved) == KEYS.size
        assert tables_of(running) == [{"t": SPEC}] * 4
        client.setup([SPEC])
        assert rows_of(client) == {1.0}


def test_a_load_finishes_a_set_up_that_has_come_to_the_first_server_alone(saved: str) -> None:
    """The client that began it may be dead: no later load would find the table everywhere."""
    with cluster_of(2) as running:
        client, other = running.client(), running.client()
        steps = set_up(other, OTHERS["that fits"])
        next(steps)
        next(steps)
        assert client.load(saved) == KEYS.size
        next(steps, None)
        assert tables_of(running) == [{"t": OTHERS["that fits"]}] * 2
        client.close()
        other.close()


def test_a_client_loads_what_servers_see_and_it_does_not(
    saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines may each have files of their own at one path."""
    here = str(tmp_path)
    with client_of(shard_threads=2) as (client, running):
        ask = client.endpoint.ask

        def ask_there(server: str, message: Message, patience_s: float | None = None) -> Pending[Message]:
            is_of_files = isinstance(message, CheckLoad | DescribeTables | Load) and message.path == here
            return ask(server, replace(message, path=saved) if is_of_files else message, patience_s)

        monkeypatch.setattr(client.endpoint, "ask", ask_there)
        assert client.load(here) == KEYS.size
        assert tables_of(running) == [{"t": SPEC}] * 4


# --- one shard


def shard_of(units: int) -> Shard:
    shard = Shard(7, 0)
    shard.own(np.arange(units))
    return shard


@pytest.mark.parametrize("kind", [CheckLoad, Load])
def test_any_client_must_set_tables_up_before_it_loads_them(
    saved: str, kind: type[CheckLoad] | type[Load]
) -> None:
    shard, loads = shard_of(128), _Loads()
    request = ShardRequest(b"", 0, kind(saved, "1"))
    refused = run_on_shard(shard, request, loads)
    assert isinstance(refused, Failure)
    assert (refused.code, "\n" in refused.text) == ("unknown-table", False)
    assert not shard.tables
    shard.make_tables([SPEC])
    late = run_on_shard(shard, request, loads)
    assert isinstance(late, Failure) == (kind is Load)  # the refused client has trained since, perhaps
    again = run_on_shard(shard, ShardRequest(b"", 0, kind(saved, "2")), loads)
    assert again == ({} if kind is CheckLoad else {"rows": KEYS.size})


@pytest.mark.parametrize("kind", [CheckLoad, Load])
def test_a_server_that_has_joined_and_owns_nothing_yet_loads_nothing(
    tmp_path: Path, kind: type[CheckLoad] | type[Load]
) -> None:
    """The server knows no tables or dense parameters: they come with its first unit, as others have them."""
    optimizer = SGD(1.0).to_dict()
    dense = {"length": 10, "optimizer": optimizer, "parameters": [{"name": "w", "shape": [10]}]}
    with client_with(SPEC) as client:
        client.setup([SPEC], DenseSpec(10, SGD(1.0)), np.zeros(10, np.float32))
        save_tables(client, tmp_path, SPEC, dense=dense, about={"steps": 0})
    shard = shard_of(0)
    assert run_on_shard(shard, ShardRequest(b"", 0, kind(str(tmp_path), "1")), _Loads()) == {"rows": 0}
    assert not shard.tables


@pytest.mark.parametrize("kind", [CheckLoad, Load])
def test_a_load_of_some_tables_needs_no_others(tmp_path: Path, kind: type[CheckLoad] | type[Load]) -> None:
    tables = [SPEC.to_dict(), replace(SPEC, name="other").to_dict()]
    commit(str(tmp_path), Manifest(tables, {"length": 0}, [], 1, about={"steps": 0}))
    shard = shard_of(128)
    shard.make_tables([SPEC])
    request = ShardRequest(b"", 0, kind(str(tmp_path), "1", tables="t"))
    assert run_on_shard(shard, request, _Loads()) == ({} if kind is CheckLoad else {"rows": 0})


@pytest.mark.parametrize("again", [True, False], ids=["from its log", "without what it knew"])
def test_a_server_that_comes_back_makes_tables_as_they_were_saved(saved: str, again: bool) -> None:
    """In a log there is a load that has made tables: earlier servers did that."""
    shard = shard_of(128)
    shard.bare = not again
    assert (load_again if again else _Loads())(shard, Load(saved, "1")) == {"rows": KEYS.size}
    assert shard.tables == {"t": SPEC}
