"""Predictions over ZeroMQ are those of a loaded model; wrong messages get their line, and no server hangs."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError, DataError, PslibError, UnavailableError, WaitTimeoutError
from pslib.serving.client import ScoringClient
from pslib.serving.repository import Repository
from pslib.serving.settings import ServeSettings
from pslib.serving.zmq_server import ZmqServer
from pslib.transport import ZmqTransport
from tests.support.model_server import KEPT, LISTS, ROW
from tests.support.models.zoo import CLICK_MODELS, Trained, model_named
from tests.support.waiting import PATIENCE_S, wait_until


@contextmanager
def served(checkpoint: str, **settings: Any) -> Iterator[tuple[ScoringClient, ZmqServer]]:
    options = ServeSettings(**settings)
    repository = Repository({"m": checkpoint}, pslib.load, options, SystemClock())
    transport = ZmqTransport()
    server = ZmqServer(repository, options, transport.listen("tcp://127.0.0.1:0"), SystemClock())
    with ScoringClient(server.address) as client:
        yield client, server
    server.close()
    transport.close()
    repository.close()


def columns_of(table: pa.Table) -> dict[str, Any]:
    """Return columns as a client of this protocol has them."""
    found: dict[str, Any] = {}
    for name in table.column_names:
        values = table[name].to_pylist()
        valid = np.array([one is not None for one in values])
        if name in LISTS:
            found[f"{name}.lengths"] = np.array([len(one or []) for one in values], np.int32)
            found[f"{name}.valid"] = valid
            found[name] = [value for one in values for value in one or []]
            continue
        if not valid.all():
            found[f"{name}.valid"] = valid
        kind = {"age": np.float32, "user": np.int64, "year": np.int64}.get(name)
        found[name] = values if kind is None else np.array([one or 0 for one in values], kind)
    return found


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_predictions_are_those_of_the_loaded_model(name: str, tmp_path: Path) -> None:
    trained = Trained(tmp_path, model_named(name))
    trained.run(lambda trainer: None)
    table = pq.read_table(trained.test, columns=list(KEPT))
    with served(trained.checkpoint) as (client, _server):
        found = client.predict("m", columns_of(table))
    np.testing.assert_allclose(found, pslib.load(trained.checkpoint).predict(table), rtol=0, atol=1e-5)


def test_wrong_requests_get_the_error_of_their_kind(trained: Trained) -> None:
    with served(trained.checkpoint, rows_max=1) as (client, _server):
        with pytest.raises(ConfigurationError, match="model 'none': expected one of m"):
            client.predict("none", ROW)
        with pytest.raises(ConfigurationError, match="expected a version"):
            client.predict("m", ROW, version="99")
        with pytest.raises(DataError, match="no columns 'user', 'movie', 'liked'"):
            client.predict("m", {"age": np.float32([0.5])})
        with pytest.raises(DataError, match="expected 1 to 1 rows, got 2"):
            client.predict("m", {name: list(one) * 2 if isinstance(one, list) else np.repeat(one, 2)
                                 for name, one in ROW.items()})  # fmt: skip
        with pytest.raises(DataError, match="'age': expected an array of numbers, or texts"):
            client.predict("m", ROW | {"age": [None]})
        assert client.predict("m", ROW).shape == (1,)


INPUT = {"name": "age", "datatype": "FP32", "shape": [1], "data": [0.5]}


def message(**head: Any) -> list[bytes]:
    return [json.dumps({"model": "m", "inputs": [INPUT]} | head).encode()]


def test_frames_that_are_no_request_get_an_answer_with_its_status(trained: Trained) -> None:
    with served(trained.checkpoint, body_bytes_max=2048) as (client, server):
        transport = ZmqTransport()
        link = transport.connect()
        for frames, status in (
            ([b""], 400),
            ([b"{}"], 400),
            ([b"\xff\x00"], 400),
            ([b"[" * 2000], 400),
            ([b'{"model": 7}'], 400),
            ([b'{"model": "m", "inputs": [1]}', b"x"], 400),
            (message(inputs=[INPUT | {"name": "\ud800"}]), 400),
            (message(inputs=[INPUT | {"shape": [2**62]}]), 400),
            (message(id=7), 400),
            ([*message(), b"x" * 2048], 400),
            (message(version=[]), 404),
            (message(version=3), 404),
            (message(version={"a": 1}), 404),
            (message(model="\ud800"), 404),
        ):
            link.send(server.address, frames)
            came: list[Any] = []
            while not came:
                came = link.receive()
                if not came:
                    link.wait(PATIENCE_S)
            answer = json.loads(bytes(came[0][1][0]))
            assert (answer["status"], bool(answer["error"])) == (status, True), (frames, answer)
        link.close()
        transport.close()
        with pytest.raises(DataError, match="message: expected at most 2048 bytes"):
            client.predict("m", ROW | {"more": np.zeros(1000)})
        assert client.predict("m", ROW).shape == (1,)


def test_a_message_without_a_frame_is_answered(trained: Trained) -> None:
    """ZeroMQ's sockets send none, but a peer may speak its protocol with its own hands."""
    with served(trained.checkpoint) as (client, server):
        server._receive(b"nobody", [])
        (_peer, (body,)) = server._done.pop()
        assert json.loads(bytes(body))["status"] == 400
        assert client.predict("m", ROW).shape == (1,)


def test_a_fault_of_the_server_is_answered_without_its_details(trained: Trained) -> None:
    with served(trained.checkpoint) as (client, server):
        batcher = server._repository.version("m").batcher
        real = batcher._predict

        def broken(table: pa.Table) -> Any:
            raise RuntimeError("a secret")

        batcher._predict = broken
        with pytest.raises(PslibError, match="internal error; the server's log has it"):
            client.predict("m", ROW)
        batcher._predict = real
        assert client.predict("m", ROW).shape == (1,)


def test_a_switch_of_versions_under_requests_loses_none_and_ends_the_threads_of_the_one_before(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    shutil.copytree(trained.checkpoint, tmp_path / "checkpoint-000001")
    with served(str(tmp_path), keep_versions=1) as (_client, server):
        over, scores = threading.Event(), list[float]()

        def ask() -> None:
            with ScoringClient(server.address) as mine:
                while not over.is_set():
                    scores.append(float(mine.predict("m", ROW, timeout_s=PATIENCE_S)[0]))

        repository = server._repository
        scorers = list(repository.version("m").batcher._threads)
        with ThreadPoolExecutor(2) as asking:
            asked = [asking.submit(ask) for _ in range(2)]
            for number in range(2, 6):
                before, done = repository.version("m"), len(scores)
                shutil.copytree(trained.checkpoint, tmp_path / f"checkpoint-{number:06d}")
                assert repository.load("m") == str(number)
                scorers += before.batcher._threads
                wait_until(lambda done=done: len(scores) > done + 2, PATIENCE_S, "requests after the switch")
            over.set()
            for one in asked:
                one.result(PATIENCE_S)
        wait_until(
            lambda: not any(one.is_alive() for one in scorers), PATIENCE_S, "threads of dropped versions"
        )
    assert len(set(scores)) == 1
    assert not raised


def slowed(server: ZmqServer) -> tuple[threading.Semaphore, threading.Event]:
    """Let the model wait; return what tells that it began, and what lets it go on."""
    batcher = server._repository.version("m").batcher
    begun, gate, real = threading.Semaphore(0), threading.Event(), batcher._predict

    def slow(table: pa.Table) -> Any:
        begun.release()
        gate.wait(PATIENCE_S)
        return real(table)

    batcher._predict = slow
    return begun, gate


def test_a_server_that_leaves_refuses_new_requests_and_answers_those_under_way(trained: Trained) -> None:
    with served(trained.checkpoint) as (client, server), ThreadPoolExecutor(2) as others:
        begun, gate = slowed(server)

        def ask() -> Any:
            with ScoringClient(server.address) as mine:
                return mine.predict("m", ROW, timeout_s=PATIENCE_S)

        under_way = others.submit(ask)
        assert begun.acquire(timeout=PATIENCE_S)
        server.leave()
        with pytest.raises(UnavailableError, match="the server is leaving; ask another one"):
            client.predict("m", ROW)
        closing = others.submit(server.close)
        gate.set()
        assert under_way.result(PATIENCE_S).shape == (1,)
        closing.result(PATIENCE_S)


def test_a_request_that_is_not_answered_does_not_keep_a_server_that_leaves(trained: Trained) -> None:
    with served(trained.checkpoint, drain_s=0.1) as (client, server):
        begun, gate = slowed(server)
        with pytest.raises(WaitTimeoutError):
            client.predict("m", ROW, timeout_s=0.1)
        assert begun.acquire(timeout=PATIENCE_S)
        server.close()
        assert not server._thread.is_alive()
        gate.set()


def test_an_overloaded_server_says_so_and_a_silent_one_is_given_up(trained: Trained) -> None:
    with served(trained.checkpoint, waiting_rows_max=1, threads=1) as (client, server):
        batcher = server._repository.version("m").batcher
        begun, gate = slowed(server)
        with pytest.raises(WaitTimeoutError, match=r"expected an answer within 0\.2 s, got none"):
            client.predict("m", ROW, timeout_s=0.2)
        assert begun.acquire(timeout=PATIENCE_S)
        with pytest.raises(WaitTimeoutError):
            client.predict("m", ROW, timeout_s=0.2)
        with pytest.raises(UnavailableError, match="1 rows wait"):
            client.predict("m", ROW)
        gate.set()
        wait_until(lambda: not batcher.waiting_rows, PATIENCE_S, "the rows that waited to be scored")
        assert client.predict("m", ROW, timeout_s=PATIENCE_S).shape == (1,)
