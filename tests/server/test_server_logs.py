"""Servers with logs: what an acknowledged push has on disk, logs of others, disks that are full or fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib.client.client import Client
from pslib.client.membership import RankRequest
from pslib.clock import SystemClock
from pslib.cluster import connect
from pslib.config import ClusterConfig
from pslib.coordinator.coordinator import Coordinator
from pslib.errors import LogCorruptError, LogForeignError, LogFullError, PslibError, UnavailableError
from pslib.server.embedded import Embedded
from pslib.server.server import Server
from pslib.server.shard_thread import load_into
from pslib.table.optimizers import SGD
from pslib.transport import MemoryTransport
from pslib.update_log import DiskFiles, ServerLog
from tests.support.clusters import QUICK, own_threads, threads_of_pslib
from tests.support.simulated.files import SimulatedDisk
from tests.support.waiting import PATIENCE_S
from tests.update_log.test_replay import table

STEADY = replace(QUICK, silence_s=20.0, request_s=PATIENCE_S)
"""No process is lost here, also where a thread has no core for a second."""


class Logged(Embedded):
    """An embedded cluster whose servers keep logs on a simulated disk."""

    def __init__(self, config: ClusterConfig, disk: SimulatedDisk) -> None:
        self.disk = disk
        super().__init__(config)

    def _serve(self, listen: str, rank: int) -> None:
        log = ServerLog("logs", rank, self.cluster_id, SystemClock(), 0, self.disk.files)
        asked = RankRequest(rank, log.generation)
        server = Server(self.transport, self.address, self.cluster_id, listen, SystemClock(), asked, log)
        self.servers.append(server)
        self._guard(server.run, f"server {rank}")


@contextmanager
def logged(disk: SimulatedDisk, **settings: Any) -> Iterator[tuple[Client, str]]:
    """A client of such a cluster, with its table, and the cluster's name."""
    running = Logged(ClusterConfig(partition_bits=5, **{"timing": STEADY} | settings), disk)
    try:
        client = running.join()
        client.setup([table(SGD(1.0))])
        yield client, running.cluster_id
        client.close()
    finally:
        running.close()


def copy_of(disk: SimulatedDisk, synced_alone: bool = False) -> SimulatedDisk:
    """Content of a disk now, or after a power cut."""
    twin = SimulatedDisk(2)
    for folder, files in dict(disk.folders).items():
        for name, one in dict(files).items():
            twin.files(folder).append(name, [bytes(one.safe if synced_alone else one.content)])
    return twin


def counted(client: Client, keys: np.ndarray) -> np.ndarray:
    return client.pull({"t": keys}).wait().rows["t"][:, 0]


@pytest.mark.parametrize("durability", ["log", "disk"])
def test_a_server_s_rows_are_on_its_disk_when_a_push_is_acknowledged(durability: str) -> None:
    disk = SimulatedDisk(1)
    keys = np.arange(100, dtype=np.uint64)
    with logged(disk, servers=2, durability=durability, shard_threads=2) as (client, cluster_id):
        for _ in range(5):
            client.push({"t": (keys, np.ones((100, 3), np.float32))}).wait()
        expected = counted(client, keys)
        assert disk.synced_calls > 0 if durability == "disk" else not disk.synced_calls
        twin = copy_of(disk, durability == "disk")
    found: dict[int, float] = {}
    for rank in range(2):
        log = ServerLog("logs", rank, cluster_id, SystemClock(), 0, twin.files)
        log.recover(load_into)
        assert log.generation == 1
        for shard in log.shards:
            for partition in range(32):
                rows = shard.stores["t"].export_partition(partition)
                found.update(zip(rows[0].tolist(), rows[1][:, 0].tolist(), strict=True))
    assert [found[key] for key in keys.tolist()] == expected.tolist()


def test_a_full_log_makes_a_push_wait_until_there_is_room() -> None:
    disk = SimulatedDisk(1)
    timing = replace(STEADY, request_s=2.0, restart_s=1.0)
    with logged(disk, durability="log", timing=timing) as (client, _cluster_id):
        keys = np.arange(10, dtype=np.uint64)
        before = counted(client, keys)
        disk.space = disk.used
        with pytest.raises(LogFullError, match="no space for"):
            client.push({"t": (keys, np.ones((10, 3), np.float32))}).wait()
        assert np.array_equal(counted(client, keys), before)
        client.endpoint.use_timing(replace(timing, request_s=PATIENCE_S))
        client.endpoint.use_space_s(PATIENCE_S)
        waiting = client.push({"t": (keys, np.ones((10, 3), np.float32))})
        time.sleep(0.5)
        disk.space = None
        waiting.wait()
        assert np.array_equal(counted(client, keys), before - 1)


def test_a_folder_of_another_cluster_shape_or_version_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path)
    config = ClusterConfig(partition_bits=5, durability="log")
    first = ServerLog(folder, 0, "mine", SystemClock())
    assert first.generation == 0
    first.recover(load_into)
    first.begin(config)
    first.close()
    with pytest.raises(LogForeignError, match="expected the log of cluster theirs, got that of cluster mine"):
        ServerLog(folder, 0, "theirs", SystemClock())
    for wrong in ({"shard_threads": 2}, {"partition_bits": 6}, {"durability": "disk"}):
        again = ServerLog(folder, 0, "mine", SystemClock())
        again.recover(load_into)
        (name,) = wrong
        with pytest.raises(LogForeignError, match=f"expected the log of {name} "):
            again.begin(ClusterConfig(**{"partition_bits": 5, "durability": "log"} | wrong))
        again.close()
    again = ServerLog(folder, 0, "mine", SystemClock())
    assert again.generation >= 4
    again.close()
    about = tmp_path / "server-0" / "about"
    content = bytearray(about.read_bytes())
    for place in range(len(content)):
        about.write_bytes(bytes(content[:place]) + bytes([content[place] ^ 1]) + bytes(content[place + 1 :]))
        with pytest.raises(LogCorruptError):
            ServerLog(folder, 0, "mine", SystemClock()).close()


def test_a_server_s_log_is_trimmed_while_it_serves() -> None:
    disk = SimulatedDisk(1)
    limit = ClusterConfig.LOG_BYTES_MIN
    random = np.random.default_rng(1)
    keys = random.integers(0, 1 << 63, 20_000, dtype=np.uint64)
    longest = pushed_bytes = 0
    with logged(disk, durability="log", log_bytes=limit) as (client, cluster_id):
        while pushed_bytes < 2 * limit:
            chosen = np.unique(random.choice(keys, 5000))
            client.push({"t": (chosen, np.ones((chosen.size, 3), np.float32))}).wait()
            pushed_bytes += chosen.size * 20
            longest = max(longest, disk.used)
        sample = keys[:500]
        expected = counted(client, sample)
        twin = copy_of(disk)
    assert longest < limit
    log = ServerLog("logs", 0, cluster_id, SystemClock(), 0, twin.files)
    log.recover(load_into)
    assert log.logs[0].below > 1
    found = np.empty((sample.size, 3), np.float32)
    log.shards[0].stores["t"].pull(sample, found)
    assert np.array_equal(found[:, 0], expected)


def test_an_embedded_cluster_goes_on_with_what_its_log_says(tmp_path: Path) -> None:
    keys = np.arange(50, dtype=np.uint64)
    for life in range(3):
        with connect(durability="log", log=tmp_path / "log", partition_bits=5) as cluster:
            cluster.client.setup([table(SGD(1.0), seed=3)])
            before = counted(cluster.client, keys)
            if life:
                assert np.array_equal(before, after)  # noqa: F821  of the life before
            cluster.client.push({"t": (keys, np.ones((50, 3), np.float32))}).wait()
            after = counted(cluster.client, keys)
            assert np.array_equal(after, before - 1)


def test_a_log_that_can_not_be_read_is_let_go_of(tmp_path: Path) -> None:
    """A process that has not ended, as a notebook's, can repair it and try again at once."""
    keys, folder = np.arange(50, dtype=np.uint64), tmp_path / "log"
    with connect(durability="log", log=folder, partition_bits=5) as cluster:
        cluster.client.setup([table(SGD(1.0), seed=3)])
        cluster.client.push({"t": (keys, np.ones((50, 3), np.float32))}).wait()
        before = counted(cluster.client, keys)
    (segment,) = (folder / "server-0" / "shard-0").glob("*.log")
    sound = segment.read_bytes()
    segment.write_bytes(sound[:300] + bytes([sound[300] ^ 1]) + sound[301:])
    with (  # while it joins, or when it first asks for something
        pytest.raises(UnavailableError, match="damaged at byte"),
        connect(durability="log", log=folder, partition_bits=5) as cluster,
    ):
        cluster.client.setup([table(SGD(1.0), seed=3)])
    segment.write_bytes(sound)
    with connect(durability="log", log=folder, partition_bits=5) as cluster:
        cluster.client.setup([table(SGD(1.0), seed=3)])
        assert np.array_equal(counted(cluster.client, keys), before)


@pytest.mark.parametrize(("durability", "call"), [("log", "append"), ("disk", "sync")])
def test_a_disk_that_fails_ends_its_server_with_one_line(durability: str, call: str) -> None:
    disk = SimulatedDisk(1)
    with logged(disk, durability=durability) as (client, _cluster_id):
        disk.fail_next = call
        pending = client.push({"t": (np.arange(10, dtype=np.uint64), np.ones((10, 3), np.float32))})
        with pytest.raises(PslibError, match=r"can't be (written|synced): Input/output error"):
            pending.wait()


@pytest.mark.parametrize("durability", ["log", "disk"])
@pytest.mark.parametrize("fails", ["ServerSession", "MigrationThread"])
def test_a_server_that_fails_as_it_is_set_up_leaves_no_thread_address_or_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, fails: str
) -> None:
    class PlantedError(Exception):
        """Error raised by this test."""

    def fail(*_arguments: object, **_more: object) -> None:
        raise PlantedError

    config = ClusterConfig(partition_bits=5, shard_threads=2, durability=durability, timing=STEADY)
    transport, clock = MemoryTransport(), SystemClock()
    coordinator = Coordinator(transport, config, "demo", "memory:demo:0", clock)
    thread = threading.Thread(target=coordinator.run, daemon=True)
    thread.start()
    try:
        before = threads_of_pslib()
        log = ServerLog(str(tmp_path), 0, "demo", clock)
        monkeypatch.setattr(f"pslib.server.server.{fails}", fail)
        with pytest.raises(PlantedError):
            Server(transport, coordinator.address, "demo", "memory:here:7", clock, RankRequest(0, 0), log)
        assert own_threads(but=before) == []
        transport.listen("memory:here:7").close()
        assert DiskFiles(tmp_path / "server-0").lock("lock")
    finally:
        coordinator.stop()
        thread.join(10)
        transport.close()
