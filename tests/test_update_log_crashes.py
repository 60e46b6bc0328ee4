"""A crash at any byte leaves the state after some push, with everything that had been promised."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.client.client import Client
from pslib.client.member import Place
from pslib.clock import SystemClock
from pslib.cluster import Embedded, connect
from pslib.config import ClusterConfig
from pslib.errors import LogCorruptError, LogForeignError, LogFullError, MemoryLimitError, PslibError
from pslib.protocol.gate import Gate
from pslib.protocol.messages import Load
from pslib.server.server import Server
from pslib.server.shard_thread import _FileWork, load_into
from pslib.shard.shard import Shard
from pslib.table.optimizers import SGD
from pslib.table.policies import ByCount
from pslib.update_log import RollingLog, ServerLog
from pslib.update_log.shard_log import ShardLog, recover
from tests import test_increments
from tests.checkpoints import GOLDEN, GOLDEN_DENSE, GOLDEN_TABLE
from tests.clusters import QUICK, cluster_of
from tests.simulated_files import SimulatedDisk
from tests.test_checkpoint_policies import joined, save
from tests.test_update_log_replay import ABOUT, TABLES, Run, fingerprint, table

Snapshots = list[dict[str, Any]]


def pushed(run: Run, count: int) -> Snapshots:
    """A few pushes, and what the shard was after each record."""
    snapshots = [fingerprint(run.shard)] * (run.log.log.last + 1)
    for _ in range(count):
        run.push()
        snapshots += [fingerprint(run.shard)] * (run.log.log.last + 1 - len(snapshots))
    return snapshots


def recovered(disk: SimulatedDisk, disk_mode: bool = False) -> tuple[RollingLog, dict[str, Any]]:
    log = RollingLog(disk.files("log"), ABOUT, disk=disk_mode, segment_bytes=4096)
    shard = Run.blank()
    recover(log, shard, lambda *_: None)
    return log, fingerprint(shard)


def test_killed_at_any_byte_of_the_last_records_the_state_is_that_after_the_last_whole_one() -> None:
    run = Run(TABLES["Adam"], 3, log_bytes=1 << 40)
    snapshots = pushed(run, 6)
    name = list(run.disk.folders["log"])[-1]
    whole = bytes(run.disk.folders["log"][name].content)
    seen = set()
    for size in range(max(0, len(whole) - 2500), len(whole) + 1):
        twin = SimulatedDisk()
        for other, one in run.disk.folders["log"].items():
            twin.files("log").append(other, [whole[:size] if other == name else bytes(one.content)])
        log = RollingLog(twin.files("log"), ABOUT, segment_bytes=4096)
        if log.last not in seen or size % 50 == 0:  # a cut log is the same whatever was cut off
            assert recovered(twin)[1] == snapshots[log.last]
        seen.add(log.last)
    assert run.log.log.last in seen
    assert len(seen) >= 2


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), syncs=st.lists(st.booleans(), min_size=1, max_size=12))
def test_without_power_everything_synced_is_there_and_the_state_is_that_after_some_push(
    seed: int, syncs: list[bool]
) -> None:
    run = Run(TABLES["Adagrad"], seed, log_bytes=1 << 40)
    run.disk = SimulatedDisk(seed)
    run.shard = run.blank()
    log = RollingLog(run.disk.files("log"), ABOUT, disk=True, segment_bytes=4096)
    run.log = ShardLog(log, run.shard, 1 << 40)
    run.shard.own(np.arange(19))
    run.shard.setup(Run.setup(TABLES["Adagrad"]))
    log.sync()
    snapshots = [fingerprint(run.shard)] * (log.last + 1)
    for sync in syncs:
        run.push()
        snapshots += [fingerprint(run.shard)] * (log.last + 1 - len(snapshots))
        if sync:
            log.sync()
    promised = log.durable
    run.disk.lose_power()
    after, state = recovered(run.disk, disk_mode=True)
    assert promised <= after.last
    assert state == snapshots[after.last]


class Log:
    """What a gate looks at."""

    def __init__(self) -> None:
        self.last = self.durable = 0


def test_answers_leave_when_what_they_say_is_durable_in_their_order() -> None:
    first, second = Log(), Log()
    asked: list[bool] = []
    left: list[str] = []
    gate = Gate([first, second], lambda: asked.append(True))
    gate.pass_when_durable((0, 1), lambda: left.append("nothing to wait for"))
    first.last = 3
    gate.pass_when_durable((0,), lambda: left.append("3"))
    first.last = second.last = 4
    gate.pass_when_durable((0, 1), lambda: left.append("4"))
    gate.pass_when_durable((1,), lambda: left.append("copy of 4"))
    assert left == ["nothing to wait for"]
    assert len(asked) == 3
    first.durable = 4
    gate.look()
    assert left[1:] == ["3"]
    second.durable = 4
    gate.look()
    assert left[2:] == ["4", "copy of 4"]
    assert not len(gate)


def test_a_load_is_replayed_until_images_make_it_unneeded() -> None:
    disk = SimulatedDisk()

    def shard_with_tables() -> Shard:
        return Shard(5, 3)

    shard = shard_with_tables()
    log = ShardLog(RollingLog(disk.files("log"), ABOUT), shard, 1 << 40)
    shard.own(np.arange(32 + 3))
    shard.setup(Run.setup(GOLDEN_TABLE, GOLDEN_DENSE))
    message = Load(str(GOLDEN), "1")
    load_into(shard, message)
    log.loaded(message)

    def state_of(one: Shard) -> dict[int, Any]:
        return {
            partition: sorted(
                (key, weights.tobytes(), state.tobytes())
                for key, weights, state in zip(*one.stores["item"].export_partition(partition), strict=True)
            )
            for partition in range(32)
        }

    for loads in (1, 0):
        calls: list[Load] = []
        twin = shard_with_tables()
        recover(
            RollingLog(disk.files("log"), ABOUT),
            twin,
            lambda one, what, calls=calls: (calls.append(what), load_into(one, what)),
        )
        assert len(calls) == loads
        assert state_of(twin) == state_of(shard)
        assert twin.dense is not None
        assert shard.dense is not None
        assert {b: w.tobytes() for b, w in twin.dense.weights.items()} == {
            b: w.tobytes() for b, w in shard.dense.weights.items()
        }
        while log.owes:
            log.pace()


@pytest.mark.parametrize("admission", [None, ByCount(2)], ids=["any", "counted"])
@pytest.mark.parametrize("number", [0, 1], ids=["full", "increment"])
def test_rows_that_leave_during_a_load_are_gone_after_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, admission: ByCount | None
) -> None:
    spec = replace(test_increments.SPEC, admission=admission)
    monkeypatch.setattr(test_increments, "SPEC", spec)
    keys = np.arange(200_000, dtype=np.uint64)
    with cluster_of(partition_bits=5, dense_blocks=3) as running:
        client = running.client()
        client.setup([spec], test_increments.DENSE, np.ones(6, np.float32))
        rows = np.ones((keys.size, 4), np.float32)
        for _ in range(2):  # the second one makes rows of keys that are counted
            client.push({"item": (keys, rows)}).wait()
        test_increments.save(client, tmp_path, 0)
        client.push({"item": (keys[:60_000], rows[:60_000])}).wait()  # some had left and come again
        client.erase({"item": keys[::50]}).wait()
        client.push({"item": (keys[::50], rows[: keys[::50].size])}).wait()
        test_increments.save(client, tmp_path, 1)
        client.close()
    run = Run(replace(spec, when_full="oldest"), 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    path = tmp_path / f"checkpoint-{number + 1:06d}"
    _FileWork(run.log)(run.shard, Load(str(path), "1", tables="item"))
    assert 0 < run.shard.stores["item"].rows < keys.size
    twin = Run.blank(8 << 20)
    recover(run.open(), twin, load_into)
    found, expected = fingerprint(twin), fingerprint(run.shard)
    assert [name for name in expected if found.get(name) != expected[name]] == []


def test_a_restart_after_a_load_that_let_rows_go_has_room_for_new_ones(saved_rows: dict[int, str]) -> None:
    run = Run(replace(TABLES["Adagrad"], when_full="oldest"), 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    _FileWork(run.log)(run.shard, Load(saved_rows[400_000], "1", tables="t"))
    twin = Run.blank(8 << 20)
    recover(run.open(), twin, load_into)
    assert twin.stores["t"].rows == run.shard.stores["t"].rows
    assert twin.stores["t"].stats()["resident_bytes"] <= 8 << 20
    twin.room.make({"t": np.arange(1 << 40, (1 << 40) + 500, dtype=np.uint64)}, twin.stores, twin.tables)


@pytest.fixture(scope="module")
def saved_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Checkpoints by their number of rows."""
    folders = {}
    for rows in (400_000, 140_000, 100_000):
        folders[rows] = str(tmp_path_factory.mktemp("rows"))
        keys = np.arange(rows, dtype=np.uint64)
        with cluster_of(partition_bits=5) as running:
            client = joined(running, TABLES["Adagrad"])
            client.push({"t": (keys, np.ones((rows, 3), np.float32))}).wait()
            save(client, Path(folders[rows]), TABLES["Adagrad"])
            client.close()
    return folders


@pytest.mark.parametrize("pushes", [0, 20], ids=["empty", "trained"])
@pytest.mark.parametrize("rows", [400_000, 140_000], ids=["too many", "a few too many"])
def test_a_load_without_room_leaves_what_a_restart_gives(
    saved_rows: dict[int, str], rows: int, pushes: int
) -> None:
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    for _ in range(pushes):
        run.push()
    run.log.write_images()
    before, message = fingerprint(run.shard), Load(saved_rows[rows], "1", tables="t")
    half_way = rows == 140_000 and pushes > 0
    outcome = (
        "answers no more" if half_way else "none of its rows has" if rows == 400_000 else "tables are empty"
    )
    with pytest.raises(MemoryLimitError, match=outcome):
        _FileWork(run.log)(run.shard, message)
    assert bool(run.shard.broken) == half_way
    assert (fingerprint(run.shard) != before) == half_way
    while run.log.owes:
        run.log.pace()
    run.log.flush()
    assert fingerprint(run.recovered()) == before


def test_a_load_that_has_just_room_is_done_and_survives_a_restart(saved_rows: dict[int, str]) -> None:
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    for _ in range(20):
        run.push()
    assert _FileWork(run.log)(run.shard, Load(saved_rows[100_000], "1", tables="t")) == {"rows": 100_000}
    while run.log.owes:
        run.log.pace()
    run.check()


def test_a_copy_of_a_load_that_was_refused_is_refused_though_there_is_room_now(
    saved_rows: dict[int, str],
) -> None:
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    work, message = _FileWork(run.log), Load(saved_rows[140_000], "1", tables="t")
    with pytest.raises(MemoryLimitError):
        work(run.shard, message)
    run.shard.room.limit_bytes = 64 << 20
    with pytest.raises(MemoryLimitError):
        work(run.shard, message)
    assert work(run.shard, replace(message, stem="2")) == {"rows": 140_000}


# --- a server ---


class Logged(Embedded):
    """An embedded cluster whose servers keep logs on a simulated disk."""

    def __init__(self, config: ClusterConfig, disk: SimulatedDisk) -> None:
        self.disk = disk
        super().__init__(config)

    def _serve(self, listen: str, rank: int) -> None:
        log = ServerLog("logs", rank, self.cluster_id, SystemClock(), 0, self.disk.files)
        place = Place(rank, log.generation)
        server = Server(self.transport, self.address, self.cluster_id, listen, SystemClock(), place, log)
        self.servers.append(server)
        self._guard(server.run, f"server {rank}")


def counted(client: Client, keys: np.ndarray) -> np.ndarray:
    return client.pull({"t": keys}).wait().rows["t"][:, 0]


@pytest.mark.parametrize("durability", ["log", "disk"])
def test_a_server_s_rows_are_on_its_disk_when_a_push_is_acknowledged(durability: str) -> None:
    disk = SimulatedDisk(1)
    config = ClusterConfig(servers=2, partition_bits=5, durability=durability, shard_threads=2, timing=QUICK)
    keys = np.arange(100, dtype=np.uint64)
    running = Logged(config, disk)
    try:
        client = running.join()
        client.setup([table(SGD(1.0))])
        for _ in range(5):
            client.push({"t": (keys, np.ones((100, 3), np.float32))}).wait()
        expected = counted(client, keys)
        left = {name: dict(files) for name, files in disk.folders.items()}
        assert disk.synced_calls > 0 if durability == "disk" else not disk.synced_calls
        twin = SimulatedDisk(2)
        for folder, files in left.items():
            for name, one in files.items():
                content = one.safe if durability == "disk" else bytes(one.content)
                twin.files(folder).append(name, [bytes(content)])
        client.close()
    finally:
        running.close()
    found: dict[int, float] = {}
    for rank in range(2):
        log = ServerLog("logs", rank, running.cluster_id, SystemClock(), 0, twin.files)
        log.recover(load_into)
        assert log.generation == 1
        for shard in log.shards:
            for partition in range(32):
                rows = shard.stores["t"].export_partition(partition)
                found.update(zip(rows[0].tolist(), rows[1][:, 0].tolist(), strict=True))
    assert [found[key] for key in keys.tolist()] == expected.tolist()


def test_a_full_log_makes_a_push_wait_until_there_is_room() -> None:
    disk = SimulatedDisk(1)
    timing = replace(QUICK, request_s=2.0, restart_s=1.0)
    running = Logged(ClusterConfig(partition_bits=5, durability="log", timing=timing), disk)
    try:
        client = running.join()
        client.setup([table(SGD(1.0))])
        keys = np.arange(10, dtype=np.uint64)
        before = counted(client, keys)
        disk.space = disk.used
        with pytest.raises(LogFullError, match="no space for"):
            client.push({"t": (keys, np.ones((10, 3), np.float32))}).wait()
        assert np.array_equal(counted(client, keys), before)
        waiting = client.push({"t": (keys, np.ones((10, 3), np.float32))})
        time.sleep(0.5)
        disk.space = None
        waiting.wait()
        assert np.array_equal(counted(client, keys), before - 1)
        client.close()
    finally:
        running.close()


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
    config = ClusterConfig(partition_bits=5, durability="log", log_bytes=limit, timing=QUICK)
    running = Logged(config, disk)
    random = np.random.default_rng(1)
    keys = random.integers(0, 1 << 63, 20_000, dtype=np.uint64)
    longest = pushed_bytes = 0
    try:
        client = running.join()
        client.setup([table(SGD(1.0))])
        while pushed_bytes < 2 * limit:
            chosen = np.unique(random.choice(keys, 5000))
            client.push({"t": (chosen, np.ones((chosen.size, 3), np.float32))}).wait()
            pushed_bytes += chosen.size * 20
            longest = max(longest, disk.used)
        sample = keys[:500]
        expected = counted(client, sample)
        twin = SimulatedDisk(2)
        for folder, files in disk.folders.items():
            for name, one in files.items():
                twin.files(folder).append(name, [bytes(one.content)])
        client.close()
    finally:
        running.close()
    assert longest < limit
    log = ServerLog("logs", 0, running.cluster_id, SystemClock(), 0, twin.files)
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


@pytest.mark.parametrize(("durability", "call"), [("log", "append"), ("disk", "sync")])
def test_a_disk_that_fails_ends_its_server_with_one_line(durability: str, call: str) -> None:
    disk = SimulatedDisk(1)
    running = Logged(ClusterConfig(partition_bits=5, durability=durability, timing=QUICK), disk)
    try:
        client = running.join()
        client.setup([table(SGD(1.0))])
        disk.fail_next = call
        pending = client.push({"t": (np.arange(10, dtype=np.uint64), np.ones((10, 3), np.float32))})
        with pytest.raises(PslibError, match=r"can't be (written|synced): Input/output error"):
            pending.wait()
        client.close()
    finally:
        running.close()
