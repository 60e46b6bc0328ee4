"""A client that describes no tables takes over those of its cluster, and reads their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.client.client import Client
from pslib.cluster import Watcher
from pslib.config import ClusterConfig
from pslib.errors import ConfigurationError, UnknownTableError
from pslib.server.embedded import Embedded
from pslib.table.optimizers import SGD
from pslib.table.policies import ByAge, ByCount
from pslib.table.tables import DenseSpec
from pslib.transport import ZmqTransport
from pslib.transport.keys import make_keys
from pslib.wire.messages import DescribeTables, Result, Setup
from pslib.wire.permissions import refusal
from rec_models import DeepFM
from tests.house.test_docs import blocks
from tests.support.clients import KEYS, PLAIN, SPEC, ones, rows_of
from tests.support.clusters import Trainers, cluster_of
from tests.support.processes.command import ROOT

AGING = replace(PLAIN, name="aging", admission=ByCount(2), eviction=(ByAge(100.0),), storage="bfloat16")
DENSE = DenseSpec(10, SGD(1.0)), np.arange(10, dtype=np.float32)


@pytest.fixture
def running() -> Iterator[Trainers]:
    with cluster_of(3, shard_threads=2) as running:
        yield running


@pytest.fixture
def trainer(running: Trainers) -> Iterator[Client]:
    client = running.client()
    yield client
    client.close()


@pytest.fixture
def guest(running: Trainers) -> Iterator[Client]:
    client = running.client()
    yield client
    client.close()


def test_rows_of_tables_that_others_have_described_are_read(trainer: Client, guest: Client) -> None:
    trainer.setup([SPEC, PLAIN, AGING], *DENSE)
    keys = np.arange(300, dtype=np.uint64)
    trainer.push({"plain": (keys, ones(300, 2))}).wait()
    with pytest.raises(ConfigurationError, match=r"no tables yet: .* take_tables\(\)"):
        guest.pull({"plain": keys})
    assert guest.take_tables() == (SPEC, PLAIN, AGING)
    assert guest.take_tables() == (SPEC, PLAIN, AGING)
    assert guest.pull({"plain": keys}).wait().rows["plain"].tolist() == [[-1, -1]] * 300
    first = trainer.pull({"item": keys}).wait().rows["item"]
    assert np.array_equal(guest.pull({"item": keys}).wait().rows["item"], first)


def test_dense_parameters_are_left_alone(trainer: Client, guest: Client) -> None:
    trainer.setup([PLAIN], *DENSE)
    guest.take_tables()
    guest.push({"plain": (KEYS, ones(2, 2))}).wait()
    assert trainer.pull({}, dense=True).wait().dense.tolist() == list(range(10))
    assert guest.session.dense_length == 0


def test_a_cluster_without_tables_says_so_in_one_line(trainer: Client, guest: Client) -> None:
    with pytest.raises(UnknownTableError, match="has no tables yet: its trainers set them up") as caught:
        guest.take_tables()
    assert "\n" not in str(caught.value)
    trainer.setup([PLAIN])
    assert guest.take_tables() == (PLAIN,)


def test_tables_that_come_later_are_added(trainer: Client, guest: Client) -> None:
    trainer.setup([PLAIN])
    guest.take_tables()
    trainer.setup([SPEC])
    with pytest.raises(ConfigurationError, match=r"table 'item' is unknown; tables: \['plain'\]"):
        guest.pull({"item": KEYS})
    assert guest.take_tables() == (PLAIN, SPEC)
    assert guest.pull({"item": KEYS, "plain": KEYS}).wait().rows["item"].shape == (2, 4)


def test_a_set_up_that_has_come_to_the_first_server_alone_is_finished(
    running: Trainers, trainer: Client, guest: Client
) -> None:
    """The client that began it may be dead: the other servers would refuse pulls for ever."""
    message = Setup({"tables": [PLAIN.to_dict()]}, 0, {}, np.empty(0, np.float32))
    trainer.endpoint.ask(trainer.servers[0], message).wait()
    assert guest.take_tables() == (PLAIN,)
    keys = range(100)
    assert rows_of(guest, *keys) == [[0, 0]] * 100
    tables = [thread.shard.tables for server in running.embedded.servers for thread in server._threads]
    assert tables == [{"plain": PLAIN}] * 6


def test_the_notebook_of_the_page_on_scaling_reads_rows_of_the_run() -> None:
    page = (ROOT / "docs" / "guide" / "scale.md").read_text(encoding="utf-8")
    (script,) = blocks(page, "python")
    embedded = Embedded(ClusterConfig(servers=2), ZmqTransport(), "tcp://127.0.0.1:0")
    names: dict[str, Any] = {"address": embedded.address, "cluster_id": embedded.cluster_id}
    try:
        with pslib.connect(embedded.address, cluster_id=embedded.cluster_id) as run:
            model = DeepFM(pslib.Schema(label="click", sparse=["user", "item"]), dim=2, hidden=(2,))
            pslib.Trainer(model, run)
            exec(compile(script, "scale.md", "exec"), names)
            rows = run.client.pull({"embedding": names["keys"]}).wait().rows["embedding"]
    finally:
        embedded.close()
    assert rows.any()
    assert np.array_equal(names["rows"], rows)


@pytest.mark.parametrize("role", ["reader", "trainer", "admin", "server"])
def test_every_role_that_may_pull_may_ask_what_tables_there_are(role: str) -> None:
    assert refusal(role, DescribeTables()) is None
    of_a_checkpoint = refusal(role, DescribeTables("/checkpoint"))
    assert (of_a_checkpoint is None) == (role in ("trainer", "admin"))


def test_in_a_cluster_with_keys() -> None:
    keys = make_keys()
    config = ClusterConfig(servers=2)
    embedded = Embedded(config, ZmqTransport(keys=keys["server"]), "tcp://127.0.0.1:0")
    place = (embedded.address, embedded.cluster_id)
    try:
        with pslib.connect(place[0], cluster_id=place[1], keys=keys["trainer"]) as run:
            run.client.setup([PLAIN], *DENSE)
            run.client.push({"plain": (KEYS, ones(2, 2))}).wait()
            with pslib.connect(place[0], cluster_id=place[1], keys=keys["trainer"]) as notebook:
                assert notebook.client.take_tables() == (PLAIN,)
                assert rows_of(notebook.client, 1) == [[-1, -1]]
            watcher = Watcher(*place, keys["reader"])
            answer = watcher.ask(run.client.servers[0], DescribeTables())
            watcher.close()
            assert isinstance(answer, Result)
            assert answer.values == {"tables": [PLAIN.to_dict()]}
    finally:
        embedded.close()
