"""The client: pull, push, erase and set-up, and how each refusal and each loss comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.common.hashing import partition_of
from pslib.client.client import Client
from pslib.config import Timing
from pslib.errors import (
    ConfigurationError,
    MemoryLimitError,
    UnavailableError,
    WaitTimeoutError,
)
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.wire.fields import Message
from pslib.wire.messages import Setup
from tests.support.clients import (
    KEYS,
    PLAIN,
    SPEC,
    client_of,
    client_with,
    keys_of,
    ones,
    rows_of,
    set_up_client,
)
from tests.support.clusters import cluster_of
from tests.support.definitions.table import DictTable
from tests.support.training import UNHURRIED
from tests.support.waiting import PATIENCE_S, WAIT_S, wait_until

LAST_KEY = (1 << 64) - 1
client = pytest.fixture(set_up_client)


# --- what calls mean


def test_an_unseen_key_gives_its_first_value_and_stays_unseen(client: Client) -> None:
    expected = np.empty((3, 4), np.float32)
    DictTable(SPEC, 0).pull(keys_of(5, 0, LAST_KEY), expected)
    rows = client.pull({"item": keys_of(5, 0, LAST_KEY)}).wait().rows["item"]
    assert rows.tobytes() == expected.tobytes()
    assert client.stats()["rows"] == 0


def test_the_first_and_the_last_key_are_ordinary(client: Client) -> None:
    client.push({"plain": (keys_of(0, LAST_KEY), np.array([[1, 2], [3, 4]], np.float32))}).wait()
    assert rows_of(client, LAST_KEY, 0, 1) == [[-3, -4], [-1, -2], [0, 0]]
    client.erase({"plain": keys_of(0)}).wait()
    assert rows_of(client, LAST_KEY, 0) == [[-3, -4], [0, 0]]


def test_repeated_keys_in_a_push_are_summed_in_order_before_one_step(client: Client) -> None:
    gradients = np.array([[1e8], [1.0], [-1e8], [0.25]], np.float32).repeat(4, axis=1)
    in_order = ((np.float32(1e8) + np.float32(1)) + np.float32(-1e8)) + np.float32(0.25)
    table = DictTable(SPEC, 0)
    table.push(keys_of(9, 8), np.array([[in_order] * 4, [2] * 4], np.float32))
    client.push({"item": (keys_of(9, 9, 8, 9, 9), np.insert(gradients, 2, 2.0, axis=0))}).wait()
    expected = np.empty((2, 4), np.float32)
    table.pull(keys_of(9, 8), expected)
    assert client.pull({"item": keys_of(9, 8)}).wait().rows["item"].tobytes() == expected.tobytes()


def test_a_pull_may_repeat_keys(client: Client) -> None:
    client.push({"plain": (keys_of(3), np.array([[1, 2]], np.float32))}).wait()
    assert rows_of(client, 3, 4, 3, 3, 4) == [[-1, -2], [0, 0], [-1, -2], [-1, -2], [0, 0]]


def test_empty_pulls_pushes_and_erasures_are_ordinary(client: Client) -> None:
    none = keys_of()
    assert client.pull({"plain": none}).wait(5.0).rows["plain"].shape == (0, 2)
    assert client.pull({}).wait(5.0).rows == {}
    client.push({"plain": (none, np.empty((0, 2), np.float32))}).wait(5.0)
    client.push({}).wait(5.0)
    client.erase({"plain": none}).wait(5.0)
    assert client.stats()["rows"] == 0


def test_erased_rows_begin_anew_and_absent_ones_may_be_erased(client: Client) -> None:
    for _ in range(3):
        client.push({"item": (keys_of(1, 2), ones(2))}).wait()
    client.erase({"item": keys_of(1, 1, 77)}).wait()
    client.push({"item": (keys_of(1), ones(1))}).wait()
    table = DictTable(SPEC, 0)
    table.push(keys_of(1), ones(1))
    expected = np.empty((1, 4), np.float32)
    table.pull(keys_of(1), expected)
    assert client.pull({"item": keys_of(1)}).wait().rows["item"].tobytes() == expected.tobytes()
    assert client.stats()["rows"] == 2


def test_strided_arrays_are_taken_as_they_look(client: Client) -> None:
    keys = np.arange(10, dtype=np.uint64)
    gradients = np.arange(40, dtype=np.float32).reshape(10, 4)
    client.push({"plain": (keys[::2], gradients[::2, ::2])}).wait()
    client.erase({"plain": keys[:5:2]}).wait()
    assert client.pull({"plain": keys[::3]}).wait().rows["plain"].tolist() == [
        [0, 0],
        [0, 0],
        [-24, -26],
        [0, 0],
    ]


def test_several_tables_and_dense_parameters_go_in_one_call(client: Client) -> None:
    dense = np.arange(10, dtype=np.float32)
    client.push({"plain": (keys_of(1), ones(1, 2)), "item": (keys_of(1), ones(1))}, dense).wait()
    pulled = client.pull({"plain": keys_of(1), "item": keys_of(1)}, dense=True).wait()
    assert pulled.rows["plain"].tolist() == [[-1, -1]]
    assert pulled.dense.tolist() == [0.0] * 10
    assert pulled.rows["item"].shape == (1, 4)


Operations = st.lists(
    st.tuples(st.sampled_from(["push", "erase", "pull"]), st.lists(st.integers(0, 12), max_size=9)),
    max_size=12,
)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Client]:
    with client_with(SPEC, servers=2, shard_threads=2) as client:
        yield client


@settings(max_examples=40, deadline=None)
@given(operations=Operations, seed=st.integers(0, 1000))
def test_any_sequence_of_calls_gives_the_bits_of_a_dict(
    lasting: Client, operations: list[tuple[str, list[int]]], seed: int
) -> None:
    table, numbers = DictTable(SPEC, 0), np.random.default_rng(seed)
    lasting.erase({"item": np.arange(13, dtype=np.uint64)}).wait()
    for what, chosen in operations:
        keys = keys_of(*chosen)
        if what == "pull":
            expected = np.empty((keys.size, 4), np.float32)
            table.pull(keys, expected)
            assert lasting.pull({"item": keys}).wait().rows["item"].tobytes() == expected.tobytes()
        elif what == "erase":
            table.erase(np.unique(keys))
            lasting.erase({"item": keys}).wait()
        else:
            gradients = numbers.standard_normal((keys.size, 4)).astype(np.float32)
            sums: dict[int, np.ndarray] = {}
            for key, gradient in zip(chosen, gradients, strict=True):
                sums[key] = sums[key] + gradient if key in sums else gradient
            table.push(keys_of(*sums), np.array(list(sums.values()), np.float32).reshape(-1, 4))
            lasting.push({"item": (keys, gradients)}).wait()
    assert lasting.stats()["rows"] == table.rows


# --- refusals, waits and losses


def test_a_push_that_was_refused_does_not_keep_later_ones_in_memory() -> None:
    """Its number is settled: no client can send it again."""
    with client_of(1, server_memory_bytes=4 << 20) as (client, running):
        client.setup([PLAIN])
        client.push({"plain": (keys_of(1), ones(1, 2))}).wait()
        with pytest.raises(MemoryLimitError):
            client.push({"plain": (np.arange(300_000, dtype=np.uint64), ones(300_000, 2))}).wait()
        for _ in range(50):
            client.push({"plain": (keys_of(1), ones(1, 2))}).wait()
        assert rows_of(client, 1) == [[-51, -51]]
        (marks,) = [shard.marks for shard in running.embedded.servers[0]._session.shards]
        kept = [len(known.applied) for known in marks.streams.values()]
        assert max(kept) <= 2
        assert client.session.acked_below(client.session.own_stream) == 52


def test_a_wait_that_is_too_short_says_so_and_may_be_repeated() -> None:
    gate = threading.Event()
    with client_of(1) as (client, running):
        client.setup([PLAIN])
        running.embedded.servers[0]._threads[0].put(lambda _shard: gate.wait(20.0))
        pull = client.pull({"plain": keys_of(1)})
        with pytest.raises(WaitTimeoutError, match=r"waited 0\.05 s for a pull: no answer yet"):
            pull.wait(0.05)
        gate.set()
        assert pull.wait(10.0).rows["plain"].tolist() == [[0, 0]]
        assert pull.wait(10.0).rows["plain"].tolist() == [[0, 0]]


def test_requests_that_are_sent_again_count_once() -> None:
    gate = threading.Event()
    with client_of(1, timing=Timing(retry_s=0.02, retry_max_s=0.02)) as (client, running):
        client.setup([PLAIN])
        running.embedded.servers[0]._threads[0].put(lambda _shard: gate.wait(20.0))
        push = client.push({"plain": (keys_of(1), ones(1, 2))})
        wait_until(lambda: client.endpoint.requests.resent > 2, WAIT_S, "the push to be sent again")
        gate.set()
        push.wait(10.0)
        assert rows_of(client, 1) == [[-1, -1]]


def test_stats_count_what_was_done(client: Client) -> None:
    # a pull that is sent again is served, and counted, again
    client.endpoint.use_timing(Timing(retry_s=PATIENCE_S, retry_max_s=PATIENCE_S))
    client.push({"plain": (keys_of(1, 2, 3), ones(3, 2)), "item": (keys_of(1), ones(1))}).wait()
    rows_of(client, 1, 9, 1)
    stats = client.stats()
    assert stats["rows"] == 4
    assert stats["parameters"] == 3 * 2 + 1 * 4 + 10
    assert stats["pushes_applied"] == 1
    assert stats["updates_applied"] == client.session.updates_sent
    assert (stats["rows_pushed"], stats["rows_pulled"]) == (4, 3)
    assert stats["memory_bytes"] > 0


def test_a_closed_client_says_so() -> None:
    with client_with(PLAIN, servers=2) as client:
        client.close()
        for call in (lambda: client.pull({"plain": KEYS}), client.stats, lambda: client.setup([PLAIN])):
            with pytest.raises(UnavailableError, match="left the cluster"):
                call()


def test_rows_that_are_not_asked_for_take_no_memory(client: Client) -> None:
    for _ in range(3):
        client.pull({"plain": keys_of(1)})
    client.push({"plain": (keys_of(1), ones(1, 2))}).wait()
    last = client.pull({"plain": keys_of(1, 2)})
    first, again = last.wait(), last.wait()
    assert first is again
    assert first.rows["plain"].tolist() == [[-1.0, -1.0], [0.0, 0.0]]
    wait_until(lambda: not client.session._calls, 5, "the pulls that are not waited for to be forgotten")


def test_nothing_is_kept_for_an_address_where_no_server_is_any_more(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(client.endpoint, "forget", forgotten.append)
    first = client.joined.map
    joined = first.with_address(2, "memory:another")
    client._set_map(joined)
    assert forgotten == []
    client._set_map(joined.with_address(0, "memory:elsewhere"))
    assert forgotten == [first.addresses[0]]


def test_a_server_that_does_not_answer_is_named_within_the_patience() -> None:
    with client_of(2) as (client, running):
        client.setup([PLAIN])
        server, keys = running.embedded.servers[0], np.arange(100, dtype=np.uint64)
        owners = client.joined.map.owners[partition_of(keys, client.joined.config.partition_bits)]
        server._link.close()
        client.endpoint.use_timing(Timing(retry_s=0.1, retry_max_s=0.2, request_s=0.8))  # not before
        started = time.monotonic()
        with pytest.raises(WaitTimeoutError) as caught:
            client.pull({"plain": keys[owners == server.rank]}).wait()
        assert 0.7 < time.monotonic() - started < 20.0
        assert f"server {server.rank} at {server.address}: no answer; is it alive?" in str(caught.value)


def test_a_server_that_is_lost_ends_every_wait_with_its_name() -> None:
    with client_of(2, timing=UNHURRIED) as (client, running):
        client.setup([PLAIN])
        client.push({"plain": (np.arange(100, dtype=np.uint64), ones(100, 2))}).wait()
        server = running.embedded.servers[0]
        server._member.stop_heartbeats()
        server._link.close()
        with pytest.raises(UnavailableError) as caught:
            client.pull({"plain": np.arange(100, dtype=np.uint64)}).wait()
        assert f"server {server.rank} at {server.address}" in str(caught.value)


def test_an_address_without_a_coordinator_is_named() -> None:
    with cluster_of() as running:
        running.embedded.address = "memory:nobody:1"
        with pytest.raises(WaitTimeoutError, match="memory:nobody:1: no answer"):
            running.client(Timing(start_s=0.3, retry_s=0.1))


def test_two_clients_of_one_process_do_not_meet() -> None:
    with client_of(2) as (first, running):
        first.setup([PLAIN])
        second = running.client()
        second.setup([PLAIN])
        pushes = [c.push({"plain": (keys_of(1), ones(1, 2))}) for c in (first, second) for _ in range(20)]
        for push in pushes:
            push.wait()
        assert rows_of(first, 1) == rows_of(second, 1) == [[-40, -40]]
        second.close()
        assert rows_of(first, 1) == [[-40, -40]]


# --- set-up -------------------------------------------------------------------------------------------------


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
