"""Servers join and leave while trainers push: nothing is lost, nothing is twice, nobody waits for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pslib.cluster import Cluster, Watcher
from pslib.initializers import Constant
from pslib.optimizers import SGD
from pslib.tables import DenseSpec, PartSpec, TableSpec
from pslib.transport import ZmqTransport
from tests.clusters import QUICK, Trainers, cluster_of

COUNTS = TableSpec("counts", (PartSpec("v", 2, SGD(learning_rate=1.0), Constant(0.0)),))
DENSE = DenseSpec(100, SGD(learning_rate=1.0))
KEYS = 4000
LISTEN = "tcp://127.0.0.1:0"
PATIENCE_S = 20.0


def set_up(cluster: Cluster) -> None:
    cluster.client.setup([COUNTS], DENSE, np.zeros(DENSE.length, np.float32))


def counted(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """How often each key, and each dense parameter, has been pushed."""
    pulled = cluster.client.pull({"counts": np.arange(KEYS, dtype=np.uint64)}, dense=True).wait(PATIENCE_S)
    return -pulled.rows["counts"], -pulled.dense


def until(what: str, holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, f"still not: {what}"
        time.sleep(0.02)


class Scaler:
    """Somebody who scales the cluster while others train, and looks at what comes of it."""

    def __init__(self, running: Trainers) -> None:
        self._running = running
        self._watcher = Watcher(running.embedded.address, running.embedded.cluster_id)

    def to(self, servers: int, drain: tuple[int, ...] = ()) -> dict[str, Any]:
        """Ask for so many servers, start those that are awaited, and wait until shares are even."""
        progress = self._watcher.scale(servers, drain)
        for _ in range(progress["awaited"]):
            self._running.embedded.add_server(LISTEN)
        until(f"{servers} servers own even shares", lambda: self._settled(progress["wanted"]))
        return self.status()

    def _settled(self, servers: int) -> bool:
        status = self.status()
        moves, live = status["moves"], [one for one in status["server_list"] if one["state"] == "live"]
        done = not moves["moving"] and moves["moved"] == moves["units"] and not moves["awaited"]
        return done and len(live) == servers

    def status(self) -> dict[str, Any]:
        return self._watcher.status()

    def close(self) -> None:
        self._watcher.close()


class Load:
    """Trainers that add one to random keys and to all dense parameters, until they are told to stop."""

    def __init__(self, trainers: int) -> None:
        self._over = threading.Event()
        self._left = threading.Semaphore(0)
        self._trainers = trainers
        self.sent = np.zeros((trainers, KEYS), np.int64)
        self.pushes = [0] * trainers
        self.done_s: list[float] = []

    def trainer(self, number: int) -> Callable[[Cluster], None]:
        def work(cluster: Cluster) -> None:
            try:
                self._work(cluster, number)
            finally:
                self._left.release()

        return work

    def _work(self, cluster: Cluster, number: int) -> None:
        set_up(cluster)
        random = np.random.default_rng(number)
        ones, dense = np.ones((200, 2), np.float32), np.ones(DENSE.length, np.float32)
        while not self._over.is_set():
            keys = random.choice(KEYS, 200, replace=False)
            cluster.client.push({"counts": (keys.astype(np.uint64), ones)}, dense=dense).wait(PATIENCE_S)
            self.sent[number, keys] += 1
            self.pushes[number] += 1
            self.done_s.append(time.monotonic())

    def stop(self) -> None:
        """Tell all to stop, and wait until they have."""
        self._over.set()
        for _ in range(self._trainers):
            assert self._left.acquire(timeout=PATIENCE_S)

    def check(self, cluster: Cluster) -> None:
        """Each push has counted once."""
        rows, dense = counted(cluster)
        assert (rows == self.sent.sum(axis=0)[:, None]).all()
        assert (dense == sum(self.pushes)).all()


def test_a_cluster_grows_from_two_servers_to_four_and_back_while_trainers_push() -> None:
    load, seen = Load(2), []
    with cluster_of(2, 3, transport=ZmqTransport(), listen=LISTEN, timing=QUICK, shard_threads=2) as running:
        scaler = Scaler(running)

        def scale(cluster: Cluster) -> None:
            set_up(cluster)
            try:
                until("all keys have rows", lambda: scaler.status()["rows"] == KEYS)
                seen.extend(scaler.to(servers) for servers in (4, 2))
            finally:
                load.stop()
            load.check(cluster)

        assert running.run(load.trainer(0), load.trainer(1), scale) == [None, None, None]
        scaler.close()
    grown, shrunk = ([one for one in status["server_list"] if one["state"] == "live"] for status in seen)
    assert [one["units"] for one in grown] == [34, 34, 34, 34]
    assert [one["rank"] for one in shrunk] == [0, 1]
    assert [one["units"] for one in shrunk] == [68, 68]
    assert max(np.diff(load.done_s)) < 1.0
