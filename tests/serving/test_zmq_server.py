"""Predictions over ZeroMQ are those of a loaded model; wrong messages get their line, and no server hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError, DataError, UnavailableError, WaitTimeoutError
from pslib.serving.client import ScoringClient
from pslib.serving.repository import Repository
from pslib.serving.settings import ServeSettings
from pslib.serving.zmq_server import ZmqServer
from pslib.transport import ZmqTransport
from tests.scoring.test_loaded_model import CLICK_MODELS, Trained, model_named
from tests.support.waiting import PATIENCE_S, wait_until

LISTS = ("genres", "liked")
KEPT = ("age", "user", "movie", "word", "year", *LISTS)


@contextmanager
def served(checkpoint: str, **settings: Any) -> Iterator[tuple[ScoringClient, ZmqServer]]:
    options = ServeSettings(**settings)
    repository = Repository({"m": checkpoint}, pslib.load, options, SystemClock())
    transport = ZmqTransport()
    server = ZmqServer(repository, options, transport.listen("tcp://127.0.0.1:0"))
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    made = Trained(tmp_path_factory.mktemp("clicks"), model_named("deepfm"))
    made.run(lambda trainer: None)
    return made


ROW = {"age": np.float32([0.5]), "user": np.int64([3]), "movie": ["m1"]} | {
    f"{name}{end}": value for name in LISTS for end, value in (("", ["a"]), (".lengths", np.int32([1])))
}


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


def test_frames_that_are_no_request_get_an_answer(trained: Trained) -> None:
    with served(trained.checkpoint) as (client, server):
        transport = ZmqTransport()
        link = transport.connect()
        for frames in (
            [b""],
            [b"{}"],
            [b"\xff\x00"],
            [b'{"model": 7}'],
            [b'{"model": "m", "inputs": [1]}', b"x"],
        ):
            link.send(server.address, frames)
            came: list[Any] = []
            while not came:
                came = link.receive()
                if not came:
                    link.wait(PATIENCE_S)
            assert json.loads(bytes(came[0][1][0]))["status"] == 400
        link.close()
        transport.close()
        assert client.predict("m", ROW).shape == (1,)


def test_an_overloaded_server_says_so_and_a_silent_one_is_given_up(trained: Trained) -> None:
    with served(trained.checkpoint, waiting_rows_max=1, threads=1) as (client, server):
        batcher = server._repository.version("m").batcher
        begun, gate, real = threading.Semaphore(0), threading.Event(), batcher._predict

        def slow(table: pa.Table) -> Any:
            begun.release()
            gate.wait(PATIENCE_S)
            return real(table)

        batcher._predict = slow
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
