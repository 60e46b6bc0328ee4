"""Servers join and leave while trainers push: nothing is lost or counted twice, and no trainer waits long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib import CheckpointSettings
from pslib.checkpoint import ManifestFile
from pslib.client.client import Client
from pslib.cluster import Cluster, Watcher
from pslib.errors import CheckpointError
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD, Adagrad, Adam
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.transport import ZmqTransport
from pslib.wire.messages import EndSave
from tests.support.clusters import QUICK, Trainers, cluster_of
from tests.support.counting import write_examples
from tests.support.counting_trainers import counting, counts_in
from tests.support.tables.images import begin_image, end_image, files_of_image
from tests.support.waiting import PATIENCE_S, wait_until

STEADY = replace(QUICK, silence_s=20.0, request_s=PATIENCE_S)
"""No process is lost here, also where a thread has no core for a second."""
COUNTS = TableSpec("counts", (PartSpec("v", 2, SGD(learning_rate=1.0), Constant(0.0)),))
DENSE = DenseSpec(100, SGD(learning_rate=1.0))
KEYS = 4000
LISTEN = "tcp://127.0.0.1:0"
EPOCHS = 14
"""More than it takes to scale three times."""


def set_up(cluster: Cluster) -> None:
    cluster.client.setup([COUNTS], DENSE, np.zeros(DENSE.length, np.float32))


def counted(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of pushes of each key, and of each dense parameter."""
    pulled = cluster.client.pull({"counts": np.arange(KEYS, dtype=np.uint64)}, dense=True).wait(PATIENCE_S)
    return -pulled.rows["counts"], -pulled.dense


class Scaler:
    """An administrator that scales the cluster during training, and looks at the result."""

    def __init__(self, running: Trainers) -> None:
        self._running = running
        self.watcher = Watcher(
            running.embedded.address, running.embedded.cluster_id, transport=running.embedded.transport
        )

    def to(self, servers: int, drain: tuple[int, ...] = ()) -> dict[str, Any]:
        """Ask for so many servers, start those that are awaited, and wait until shares are even."""
        progress = self.watcher.scale(servers, drain)
        for _ in range(progress["awaited"]):
            self._running.embedded.add_server(self._running.listen)
        wait_until(lambda: self._settled(progress["wanted"]), 20, f"{servers} servers to own even shares")
        return self.status()

    def _settled(self, servers: int) -> bool:
        status = self.status()
        moves, live = status["moves"], [one for one in status["servers"] if one["state"] == "live"]
        done = not moves["moving"] and moves["moved"] == moves["units"] and not moves["awaited"]
        return done and len(live) == servers

    def status(self) -> dict[str, Any]:
        status = self.watcher.status(details=True)
        return status | {"servers": [one for one in status["members"] if one["role"] == "server"]}

    def close(self) -> None:
        self.watcher.close()


class Ticks:
    """A clock that stands still while this process does: it counts a hundred a second at most."""

    def __init__(self) -> None:
        self.count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            self.count += 1

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class Load:
    """Trainers that add one to random keys and to all dense parameters, until they are told to stop."""

    def __init__(self, trainers: int, clock: Ticks) -> None:
        self._over, self._clock = threading.Event(), clock
        self._left = threading.Semaphore(0)
        self._trainers = trainers
        self.sent = np.zeros((trainers, KEYS), np.int64)
        self.pushes = [0] * trainers
        self.done: list[int] = []

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
            self.done.append(self._clock.count)

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


def test_a_cluster_grows_from_two_servers_to_four_and_back_while_trainers_push(closing: Any) -> None:
    load, seen = Load(2, closing(Ticks())), []
    with cluster_of(2, 3, transport=ZmqTransport(), listen=LISTEN, timing=STEADY, shard_threads=2) as running:
        scaler = Scaler(running)

        def scale(cluster: Cluster) -> None:
            set_up(cluster)
            try:
                wait_until(lambda: scaler.status()["rows"] == KEYS, 20, "all keys to have rows")
                seen.extend(scaler.to(servers) for servers in (4, 2))
            finally:
                load.stop()
            load.check(cluster)

        assert running.run(load.trainer(0), load.trainer(1), scale) == [None, None, None]
        scaler.close()
    grown, shrunk = ([one for one in status["servers"] if one["state"] == "live"] for status in seen)
    assert [one["units"] for one in grown] == [34, 34, 34, 34]
    assert [one["rank"] for one in shrunk] == [0, 1]
    assert [one["units"] for one in shrunk] == [68, 68]
    assert max(np.diff(load.done)) < 100


ROWS = TableSpec("rows", (PartSpec("v", 5, Adam(learning_rate=0.1)), PartSpec("w", 1, Adagrad())))
PARAMETERS = DenseSpec(100, Adagrad(learning_rate=0.1))


class OneTrainer:
    """The same pushes every time, one after the other; the caller sets their number."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.pushes = 0

    def train(self, cluster: Cluster, pushes: int | None = None) -> None:
        """Push ``pushes`` times, or until it is over."""
        cluster.client.setup([ROWS], PARAMETERS, np.ones(PARAMETERS.length, np.float32))
        random = np.random.default_rng(5)
        while self.pushes != pushes and not self.over.is_set():
            keys = random.choice(KEYS, 100, replace=False).astype(np.uint64)
            rows, dense = random.normal(size=(100, 6)), random.normal(size=PARAMETERS.length)
            given = {"rows": (keys, rows.astype(np.float32))}
            cluster.client.push(given, dense=dense.astype(np.float32), step=self.pushes).wait(PATIENCE_S)
            self.pushes += 1


def bits_of(running: Trainers) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Weights and state of each key, and of each dense block, as they lie in the servers."""
    rows: dict[int, bytes] = {}
    blocks: dict[int, bytes] = {}
    for shard in (shard for server in running.embedded.servers for shard in server._session.shards):
        for unit in range(shard.partitions if "rows" in shard.stores else 0):
            keys, weights, state = shard.stores["rows"].export_partition(unit, False)
            for place, key in enumerate(keys.tolist()):
                assert key not in rows
                rows[key] = weights[place].tobytes() + state[place].tobytes()
        for block in shard.dense.weights if shard.dense else ():
            assert block not in blocks
            blocks[block] = shard.dense.weights[block].tobytes() + shard.dense.state[block].tobytes()
    return rows, blocks


def test_two_servers_then_three_then_five_then_two_have_the_same_bits_as_two_all_the_time() -> None:
    moved, stayed = OneTrainer(), OneTrainer()
    with cluster_of(2, 2, timing=STEADY) as running:
        scaler = Scaler(running)

        def scale(_cluster: Cluster) -> None:
            try:
                wait_until(lambda: moved.pushes > 50, 20, "the training to begin")
                for servers in (3, 5, 2):
                    scaler.to(servers)
            finally:
                moved.over.set()

        def train(cluster: Cluster) -> Any:
            moved.train(cluster)
            return bits_of(running)

        bits, _none = running.run(train, scale)
        scaler.close()
    with cluster_of(2, 1, timing=STEADY) as running, running.join() as cluster:
        stayed.train(cluster, moved.pushes)
        assert bits_of(running) == bits


def test_a_server_that_would_be_too_full_keeps_no_trainer_from_training_and_loses_nothing() -> None:
    wide = TableSpec("wide", (PartSpec("v", 64, SGD(learning_rate=1.0), Constant(0.0)),))
    keys = np.arange(40_000, dtype=np.uint64)
    with cluster_of(2, 1, timing=STEADY, server_memory_bytes=12 << 20) as running:
        scaler = Scaler(running)
        with running.join() as cluster:
            cluster.client.setup([wide])
            for some in np.array_split(keys, 10):
                cluster.client.push({"wide": (some, np.ones((some.size, 64), np.float32))}).wait(PATIENCE_S)
            scaler.watcher.scale(1)
            wait_until(lambda: scaler.status()["moves"]["stopped"] is not None, 20, "the moves to end")
            status = scaler.status()
            assert "units stay with server 1: server 0 does not take unit" in status["moves"]["stopped"]
            assert "memory" in status["moves"]["stopped"]
            assert sum(one["units"] for one in status["servers"]) == 128 + 8
            assert (cluster.client.pull({"wide": keys}).wait(PATIENCE_S).rows["wide"] == -1).all()
            push = cluster.client.push({"wide": (keys, np.ones((keys.size, 64), np.float32))})
            push.wait(PATIENCE_S)
            assert (cluster.client.pull({"wide": keys}).wait(PATIENCE_S).rows["wide"] == -2).all()
        scaler.close()


def with_pauses(over: threading.Event, short: int) -> Callable[[Any, Any], None]:
    """Pause in each step of a model: so many short pauses, then long ones until it is over."""
    steps = count()

    def pause(_batch: Any, _rows: Any) -> None:
        time.sleep(0.1 if next(steps) >= short and not over.is_set() else 0.005)

    return pause


def test_a_training_in_step_goes_on_while_servers_come_and_go(tmp_path: Path) -> None:
    """A push of a sync step speaks for all units of a server, wherever they are by then."""
    examples, epochs = str(write_examples(tmp_path / "train.parquet", 1200)), 10
    scaled = threading.Event()

    def train(cluster: Cluster) -> set[float]:
        trainer = counting(cluster, with_pauses(scaled, 250), consistency="sync")  # of some 375 steps
        trainer.fit(examples, epochs=epochs)
        return set(counts_in(trainer)[0].values())

    with cluster_of(2, 2, timing=STEADY) as running:
        scaler = Scaler(running)

        def scale() -> None:
            try:
                wait_until(lambda: scaler.status()["examples"] > 100, 20, "the training to begin")
                for servers in (4, 2):
                    scaler.to(servers)
                    assert scaler.status()["phase"] == "training"
            finally:
                scaled.set()

        helper = threading.Thread(target=scale)
        helper.start()
        counts = running.run(train, train)
        helper.join()
        scaler.close()
    assert counts == [{epochs / 2}] * 2  # a step of two trainers is a mean


def test_a_training_goes_on_exactly_from_an_increment_that_was_made_between_moves(tmp_path: Path) -> None:
    examples = str(write_examples(tmp_path / "train.parquet", 1200))
    settings = CheckpointSettings(tmp_path / "saved", every_batches=12, incremental=4)

    scaled = threading.Event()
    pause = with_pauses(scaled, 700)  # of some 1050 steps

    def until_scaled(batch: Any, rows: Any) -> None:
        pause(batch, rows)
        if scaled.is_set():
            raise InterruptedError

    with cluster_of(2, 1, timing=STEADY) as running:
        scaler = Scaler(running)

        def scale() -> None:
            try:
                wait_until(lambda: scaler.status()["examples"] > 100, 20, "the training to begin")
                for servers in (3, 1, 2):
                    scaler.to(servers)
                    saved = scaler.status()["saved"]
                    wait_until(
                        lambda saved=saved: scaler.status()["saved"] != saved, 20, "another checkpoint"
                    )
            finally:
                scaled.set()

        helper = threading.Thread(target=scale)
        helper.start()
        (end,) = running.run(
            lambda one: counting(one, until_scaled, checkpoint=settings).fit(examples, epochs=EPOCHS)
        )
        helper.join()
        scaler.close()
    assert isinstance(end, InterruptedError), end
    with cluster_of(3, 1, partition_bits=8) as running, running.join() as cluster:
        again = counting(cluster, checkpoint=settings)
        again.load(tmp_path / "saved")
        again.fit(examples, epochs=EPOCHS)
        assert set(counts_in(again)[0].values()) == {float(EPOCHS)}


def test_rows_that_were_erased_before_their_partition_moved_do_not_come_back_with_the_next_checkpoint(
    tmp_path: Path,
) -> None:
    """Only the server that gave the partition away knows of them, and it leaves."""
    keys, dense = np.arange(300, dtype=np.uint64), DenseSpec(6, SGD(learning_rate=1.0))

    def save(client: Client, name: str, base: str = "") -> list[ManifestFile]:
        """The files of an image of all servers that are there."""
        begin_image(client, tmp_path / name, name, base, keep=True)
        files = files_of_image(client, name)
        end_image(client, name)
        return files

    with cluster_of(2, partition_bits=5, dense_blocks=3, timing=STEADY) as running, running.join() as cluster:
        client, scaler = cluster.client, Scaler(running)
        client.setup([COUNTS], dense, np.ones(6, np.float32))
        client.push({"counts": (keys, np.ones((300, 2), np.float32))}, np.ones(6, np.float32)).wait()
        save(client, "aaaa")
        client.erase({"counts": keys[:100]}).wait()
        assert {entry.kind for entry in save(client, "bbbb", "aaaa")} >= {"gone"}
        client.erase({"counts": keys[100:200]}).wait()
        scaler.to(1)
        wait_until(lambda: sum(map(bool, client.servers)) == 1, 20, "one server to be left")
        with pytest.raises(CheckpointError, match="that an increment could follow: ask for a full one"):
            save(client, "cccc", "bbbb")
        rank, server = next((rank, server) for rank, server in enumerate(client.servers) if server)
        late = EndSave(f"bbbb-{rank:03d}", "bbbb", True)  # a copy that was on its way for long
        client.endpoint.ask(server, late).wait(PATIENCE_S)
        with pytest.raises(CheckpointError, match="that an increment could follow: ask for a full one"):
            save(client, "cccc", "bbbb")
        assert sum(entry.rows for entry in save(client, "cccc") if entry.table) == 100
        save(client, "dddd", "cccc")
        scaler.close()
