"""Measure the cost of a save, for itself and for concurrent training and reading; part of ``checkpoint.py``.

A server process holds the rows. A trainer process pulls 4,096 random rows and pushes gradients of them, in
turn, as fast as it can; a reader process pulls 64 rows every 2 ms and notes how long each pull takes. A round
is some seconds without a save, then one save: `BeginSave`, `SaveFiles`.
"""

from __future__ import annotations

import multiprocessing
import secrets
import shutil
import statistics
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pslib.client.client import Client
from pslib.clock import SystemClock
from pslib.cluster import Embedded
from pslib.config import ClusterConfig
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from pslib.transport import ZmqTransport
from pslib.wire.messages import BeginSave, SaveFiles

TRAIN_ROWS, READ_ROWS, READ_PAUSE_S = 4096, 64, 0.002
PUSH_ROWS = 250_000


def spec_of(dim: int) -> TableSpec:
    """The table of both parts of the benchmark."""
    return TableSpec("rows", (PartSpec("v", dim, RowwiseAdagrad()),))


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Keys of rows by number."""
    return numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def serve(pipe: Connection, shard_threads: int) -> None:
    """A coordinator and a server in this process, until it is told to end."""
    config = ClusterConfig(servers=1, trainers=3, shard_threads=shard_threads)
    embedded = Embedded(config, ZmqTransport(), "tcp://127.0.0.1:0")
    pipe.send((embedded.address, embedded.cluster_id))
    pipe.recv()
    embedded.close()


def client_at(address: str, cluster_id: str) -> tuple[Client, ZmqTransport]:
    """One more client."""
    transport = ZmqTransport()
    return Client(transport, address, cluster_id, SystemClock()), transport


def train(pipe: Connection, address: str, cluster_id: str, rows: int, dim: int, seconds: float) -> None:
    """Steps, as fast as they go; sends the time of each."""
    client, transport = client_at(address, cluster_id)
    client.setup([spec_of(dim)])
    rng, times = np.random.default_rng(3), []
    gradients = rng.standard_normal((TRAIN_ROWS, dim), np.float32)
    pipe.send("ready")
    pipe.recv()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not pipe.poll():
        keys = keys_of(np.unique(rng.integers(0, rows, TRAIN_ROWS)))
        client.pull({"rows": keys}).wait()
        client.push({"rows": (keys, gradients[: keys.size])}).wait()
        times.append(time.monotonic())
    pipe.send(times)
    client.close()
    transport.close()


def read(pipe: Connection, address: str, cluster_id: str, rows: int, dim: int, seconds: float) -> None:
    """Short pulls; sends when each began and how long it took."""
    client, transport = client_at(address, cluster_id)
    client.setup([spec_of(dim)])
    rng, times = np.random.default_rng(4), []
    pipe.send("ready")
    pipe.recv()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not pipe.poll():
        keys = keys_of(rng.integers(0, rows, READ_ROWS))
        began_s, start = time.monotonic(), time.perf_counter()
        client.pull({"rows": keys}).wait()
        times.append((began_s, time.perf_counter() - start))
        time.sleep(READ_PAUSE_S)
    pipe.send(times)
    client.close()
    transport.close()


class Peak:
    """The largest memory of a process, looked at every 20 ms."""

    def __init__(self, pid: int) -> None:
        self._process, self._over = psutil.Process(pid), threading.Event()
        self.before = self.largest = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            self.largest = max(self.largest, self._process.memory_info().rss)

    def end(self) -> float:
        """By how much it rose above what it was, as a share of that."""
        self._over.set()
        self._thread.join()
        return self.largest / self.before - 1.0


def save(client: Client, folder: Path) -> int:
    """Begin an image and wait for its files; their bytes."""
    stem = f"{secrets.token_hex(4)}-000"
    client.endpoint.ask(client.servers[0], BeginSave(str(folder), stem)).wait()
    answer: Any = client.endpoint.ask(client.servers[0], SaveFiles(stem), 600.0).wait()
    size = sum(entry["bytes"] for entry in answer.values["files"])
    shutil.rmtree(folder)
    return size


def measure_serving(
    rows: int, dim: int, shard_threads: int, rounds: int, folder: Path, calm_s: float = 4.0
) -> dict[str, float]:
    """Medians of all rounds: rates and latencies with and without a save, MB/s, memory."""
    context, pipes, processes = multiprocessing.get_context("spawn"), [], []

    def start(work: Any, *arguments: Any) -> Connection:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
        return ours

    server = start(serve, shard_threads)
    address, cluster_id = server.recv()
    limit_s = rounds * (calm_s + 60.0) + 120.0
    workers = [start(work, address, cluster_id, rows, dim, limit_s) for work in (train, read)]
    client, transport = client_at(address, cluster_id)
    client.setup([spec_of(dim)])
    rng = np.random.default_rng(1)
    for first in range(0, rows, PUSH_ROWS):
        keys = keys_of(np.arange(first, min(first + PUSH_ROWS, rows)))
        client.push({"rows": (keys, rng.standard_normal((keys.size, dim), np.float32))}).wait()
    for pipe in workers:
        pipe.recv()
        pipe.send("go")
    save(client, folder / "warm")
    windows: list[tuple[float, float, float, int, float]] = []
    for number in range(rounds):
        calm = time.monotonic()
        time.sleep(calm_s)
        began, peak = time.monotonic(), Peak(processes[0].pid or 0)
        size = save(client, folder / str(number))
        windows.append((calm, began, time.monotonic(), size, peak.end()))
    for pipe in workers:
        pipe.send("stop")
    steps, pulls = (pipe.recv() for pipe in workers)
    client.close()
    transport.close()
    server.send("end")
    for process in processes:
        process.join(20.0)
    return figures_of(windows, np.array(steps), np.array(pulls))


def figures_of(
    windows: list[tuple[float, float, float, int, float]], steps: np.ndarray, pulls: np.ndarray
) -> dict[str, float]:
    """Return the figures of all rounds; each ratio is taken within one round."""
    found: dict[str, list[float]] = {}
    for calm, began, ended, size, memory in windows:
        rates, late = [], []
        for first, last in ((calm, began), (began, ended)):
            rates.append(np.count_nonzero((steps >= first) & (steps < last)) / (last - first))
            inside = (pulls[:, 0] >= first) & (pulls[:, 0] < last)
            late.append(float(np.quantile(pulls[inside, 1], 0.99)) if inside.any() else float("nan"))
        for name, value in (
            ("steps_s_calm", rates[0]),
            ("steps_s_saving", rates[1]),
            ("throughput_kept", rates[1] / rates[0]),
            ("pull_p99_ms_calm", 1e3 * late[0]),
            ("pull_p99_ms_saving", 1e3 * late[1]),
            ("pull_p99_times", late[1] / late[0]),
            ("save_mb_s", size / 1e6 / (ended - began)),
            ("memory_more", memory),
        ):
            found.setdefault(name, []).append(value)
    return {f"serving_{name}": statistics.median(values) for name, values in found.items()}
