"""Set-ups of a client: none yet, the same again, more tables, and descriptions that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pslib.client.client import Client
from pslib.errors import ConfigurationError
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.wire.messages import Message, Setup
from tests.support.clients import KEYS, PLAIN, SPEC, client_of, keys_of, ones, rows_of, set_up_client
from tests.support.waiting import WAIT_S, wait_until

client = pytest.fixture(set_up_client)


def test_calls_before_setup_get_one_line() -> None:
    with client_of() as (client, _running):
        for call in (client.pull, client.erase):
            with pytest.raises(ConfigurationError, match=r"call setup\(\.\.\.\) first"):
                call({"item": KEYS})


def test_setup_again_with_the_same_changes_nothing(client: Client) -> None:
    client.push({"plain": (keys_of(1), ones(1, 2))}).wait()
    client.setup([SPEC, PLAIN], DenseSpec(10, SGD(1.0)), np.full(10, 7, np.float32))
    client.push({"plain": (keys_of(1), ones(1, 2))}).wait()
    assert rows_of(client, 1) == [[-2, -2]]
    assert client.pull({}, dense=True).wait().dense.tolist() == list(range(10))
    assert client.stats()["pushes_applied"] == client.session.pushes_sent == 2


def test_setup_with_another_description_gets_one_line_and_changes_nothing(client: Client) -> None:
    other = TableSpec("plain", (PartSpec("x", 3, SGD(1.0), Constant(0.0)),))
    with pytest.raises(ConfigurationError, match=r"table plain exists .* has dim 2, got 3; use the same"):
        client.setup([other])
    with pytest.raises(
        ConfigurationError, match=r"dense parameters exist .* has length 10, got 11; use the same"
    ):
        client.setup([PLAIN], DenseSpec(11, SGD(1.0)), np.zeros(11, np.float32))
    with pytest.raises(ConfigurationError, match="expected 10 values, got 3"):
        client.setup([PLAIN], DenseSpec(10, SGD(1.0)), np.zeros(3, np.float32))
    assert rows_of(client, 1) == [[0, 0]]


def test_setup_again_may_add_tables_and_forgets_nothing(client: Client) -> None:
    client.push({"plain": (keys_of(1), ones(1, 2))}).wait()
    pull = client.pull({"plain": keys_of(1)}, dense=True)
    wait_until(lambda: not client.endpoint.calls_open, WAIT_S, "the answer", pause_s=0.001)
    client.setup([TableSpec("more", PLAIN.parts)])
    assert pull.wait().rows["plain"].tolist() == [[-1, -1]]
    client.push({"plain": (keys_of(1), ones(1, 2)), "more": (keys_of(1), ones(1, 2))}, ones(1, 10)[0]).wait()
    assert rows_of(client, 1) == [[-2, -2]]
    assert rows_of(client, 1, table="more") == [[-1, -1]]
    assert client.pull({}, dense=True).wait().dense[:2].tolist() == [-1, 0]
    assert client.stats()["pushes_applied"] == client.session.pushes_sent == 2
    assert client.pull({"item": keys_of(1)}).wait().rows["item"].shape == (1, SPEC.dim)


def test_of_two_clients_that_describe_a_table_differently_at_once_one_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one comes between the questions to the two servers."""
    mine, others = (TableSpec("more", (PartSpec("x", dim, SGD(1.0), Constant(0.0)),)) for dim in (2, 3))
    with client_of() as (client, running):
        other, ask = running.client(), client.endpoint.ask
        refused = []

        def ask_late(address: str, message: Message, *about: Any, **more: Any) -> Any:
            if address == client.servers[1] and isinstance(message, Setup):
                with pytest.raises(
                    ConfigurationError, match=r"table more exists .* has dim 2, got 3"
                ) as caught:
                    other.setup([others])
                refused.append(caught.value)
            return ask(address, message, *about, **more)

        monkeypatch.setattr(client.endpoint, "ask", ask_late)
        client.setup([mine])
        assert len(refused) == 1
        other.setup([mine])
        other.push({"more": (keys_of(*range(9)), ones(9, 2))}).wait()
        assert rows_of(client, *range(9), table="more") == [[-1, -1]] * 9
        other.close()


def test_a_new_table_does_not_hide_what_servers_have_acknowledged(client: Client) -> None:
    """A server that comes back is asked about the pushes before the set-up too."""
    client.push({"plain": (keys_of(1), ones(1, 2))}).wait()
    before = [client.session.acknowledged.question(server) for server in range(2)]
    client.setup([TableSpec("more", PLAIN.parts)])
    after = [client.session.acknowledged.question(server) for server in range(2)]
    assert any(before)
    assert [bool(one) for one in after] == [bool(one) for one in before]
