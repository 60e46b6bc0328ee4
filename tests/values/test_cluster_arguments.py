"""Odd values thrown at what watches a cluster and sets its limits and waits: a line each, at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.cluster import Watcher
from pslib.config import Limits, Timing
from pslib.errors import ConfigurationError
from pslib.transport.link import Transport
from pslib.transport.zmq_link import ZmqTransport
from pslib.validation import kind_problem
from pslib.wire.messages import Status
from tests.support.refused import refused


@pytest.fixture(scope="module")
def cluster() -> Iterator[pslib.Cluster]:
    with pslib.connect() as cluster:
        yield cluster


@pytest.mark.parametrize("odd", [0, -1, True, "x", None, [1], float("nan"), float("inf"), 10**400, object()])
@pytest.mark.parametrize(("kind", "argument"), [(k, f.name) for k in (Limits, Timing) for f in fields(k)])
def test_limits_and_waits_refuse_what_is_of_another_kind_or_out_of_range(
    kind: Any, argument: str, odd: Any
) -> None:
    assert refused(lambda: kind(**{argument: odd}), argument)


def test_a_silence_that_is_shorter_than_a_heartbeat_is_refused() -> None:
    (line,) = refused(lambda: Timing(heartbeat_s=6, silence_s=6), "silence_s")
    assert line == "silence_s: expected more than heartbeat_s, 6, got 6"


def test_each_wait_that_is_out_of_range_is_told() -> None:
    lines = refused(lambda: Timing(retry_s=0, drain_s=-1.5), "retry_s")
    assert lines == [
        f"{name}: expected seconds, above 0 and at most 1e+06, got {value}"
        for name, value in (("retry_s", 0), ("drain_s", -1.5))
    ]


WATCHER_CALLS = {
    "status": ("timeout_s", "details"),
    "server_stats": ("addresses", "timeout_s"),
    "ask": ("address", "message", "timeout_s"),
    "stop": ("reason", "failed"),
    "scale": ("servers", "drain"),
}


@pytest.mark.parametrize(
    ("call", "argument"), [(call, one) for call, names in WATCHER_CALLS.items() for one in names]
)
def test_a_call_of_a_watcher_refuses_what_is_of_another_kind_or_out_of_range(
    cluster: pslib.Cluster, call: str, argument: str
) -> None:
    embedded = cluster._embedded
    assert embedded is not None
    watcher = Watcher(embedded.address, embedded.cluster_id, transport=embedded.transport)
    given = {"addresses": [], "address": embedded.address, "message": Status(), "reason": "", "servers": 0}
    needed = {name: given[name] for name in WATCHER_CALLS[call] if name in given}
    try:
        for odd in (-1.5, -1, float("nan"), 10**30, b"x", {"a": 1}, None, np.array([1, 2]), [-1], [10**30]):
            assert refused(lambda odd=odd: getattr(watcher, call)(**{**needed, argument: odd}), argument)
    finally:
        watcher.close()


@pytest.mark.parametrize("argument", ["coordinator", "cluster_id", "keys", "transport"])
def test_a_watcher_refuses_what_is_of_another_kind(argument: str) -> None:
    for odd in (5, b"x", [], object(), Path("x")):
        given = {"coordinator": "tcp://127.0.0.1:9", "cluster_id": "x", argument: odd}
        assert refused(lambda given=given: Watcher(**given), argument)


def test_a_watcher_without_a_cluster_id_is_refused_at_once() -> None:
    (line,) = refused(lambda: Watcher("tcp://127.0.0.1:9", ""), "cluster_id")
    assert line == "cluster_id: expected that of a run, see its logs/cluster.json; got ''"


def test_what_has_not_all_of_a_protocol_is_refused_and_what_has_is_taken() -> None:
    (line,) = refused(lambda: Watcher("tcp://127.0.0.1:9", "x", transport="text"), "transport")  # type: ignore[arg-type]
    assert line == "transport: expected a Transport or None, got 'text'"
    assert kind_problem("transport", ZmqTransport, Transport) is not None
    transport = ZmqTransport()
    assert kind_problem("transport", transport, Transport) is None
    transport.close()


def test_a_closed_cluster_can_t_be_entered_again() -> None:
    cluster = pslib.connect()
    cluster.close()
    with pytest.raises(ConfigurationError, match=r"this cluster is closed: .* call pslib.connect"), cluster:
        pass


# --- a cluster and its status, as a notebook shows them


def test_the_repr_of_a_status_is_short_and_leaves_out_what_is_empty(cluster: pslib.Cluster) -> None:
    status = cluster.status()
    assert len(status["bins_positive"]) == 512
    assert len(repr(status)) < 500
    assert "'servers': 1" in repr(status)
    assert "'bins_positive': [... 512 values]" in repr(status)
    assert "'rows'" not in repr(status)
    empty = [name for name, value in status.items() if not value]
    assert repr(status).endswith(f", ... {len(empty)} that are 0 or empty}}")


def test_completion_of_a_cluster_offers_what_a_script_calls_and_nothing_inside(
    cluster: pslib.Cluster,
) -> None:
    shown = {name for name in dir(cluster) if not name.startswith("__")}
    assert shown == {"client", "close", "embedded", "rank", "status", "trainers"}
    assert all(hasattr(cluster, name) for name in dir(cluster))
