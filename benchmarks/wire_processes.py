"""Processes for `wire.py`: a cluster, a bare ZeroMQ server, and a client that pushes at full rate."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import zmq

from pslib.client.client import Client
from pslib.client.session import PushName
from pslib.clock import SystemClock
from pslib.config import ClusterConfig
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from pslib.transport import ZmqTransport

DIM = 16
SCATTER = np.uint64(0x9E3779B97F4A7C15)
"""Makes keys of numbers; an odd factor, so no two numbers share a key."""
TABLES = [TableSpec("rows", (PartSpec("v", DIM, RowwiseAdagrad()),))]
ANSWER_ROWS_MAX = 1 << 18
WORKER = [sys.executable, "-m", "launch.worker.main"]


def started(process: subprocess.Popen[str]) -> str:
    """The address that a process says it listens at."""
    assert process.stdout is not None
    for line in iter(process.stdout.readline, ""):
        if line.startswith("pslib-listening"):
            return line.split()[1]
    raise SystemExit(f"benchmarks/wire.py: {process.args} ended before it listened")


@contextmanager
def cluster(servers: int, shard_threads: int, trainers: int = 1) -> Iterator[tuple[str, str, list[int]]]:
    """Processes of a cluster; gives address, cluster id and the servers' process ids."""
    config = ClusterConfig(servers=servers, trainers=trainers, shard_threads=shard_threads)
    cluster_id = f"bench-{os.getpid()}-{shard_threads}"
    listen = ["--cluster-id", cluster_id, "--listen", "tcp://127.0.0.1:0"]
    coordinator = subprocess.Popen(
        [*WORKER, "coordinator", *listen, "--config", json.dumps(config.to_dict())],
        stdout=subprocess.PIPE,
        text=True,
    )
    processes: list[subprocess.Popen[str]] = [coordinator]
    try:
        address = started(coordinator)
        for _ in range(servers):
            command = [*WORKER, "server", *listen, "--coordinator", address]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True))
        yield address, cluster_id, [process.pid for process in processes[1:]]
        for process in processes[1:]:
            process.wait(20)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def joined(address: str, cluster_id: str) -> Iterator[Client]:
    """A client of a cluster."""
    transport = ZmqTransport()
    client = Client(transport, address, cluster_id, SystemClock())
    try:
        yield client
    finally:
        client.close()
        transport.close()


def make_rows(client: Client, rows: int) -> None:
    """Make every row, so that what follows finds it."""
    client.setup(TABLES)
    for start in range(0, rows, 500_000):
        keys = np.arange(start, min(start + 500_000, rows), dtype=np.uint64) * SCATTER
        client.push({"rows": (keys, np.ones((keys.size, DIM), np.float32))}).wait()


# --- bare ZeroMQ -------------------------------------------------------------------------------------------


class Bare:
    """Asks the bare server; the same sizes of messages as pslib's, and nothing done with them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)

    def begin_pull(self, keys: np.ndarray) -> Callable[[], object]:
        """Send keys; the result waits for as many rows."""
        self._socket.send_multipart([b"pull" + bytes(80), keys], copy=False)
        return self._receive

    def begin_push(self, keys: np.ndarray, gradients: np.ndarray) -> Callable[[], object]:
        """Send keys and gradients; the result waits for an empty answer."""
        self._socket.send_multipart([b"push" + bytes(80), keys, gradients], copy=False)
        return self._receive

    def _receive(self) -> object:
        return self._socket.recv_multipart(copy=False)

    def close(self) -> None:
        """End the server too."""
        self._socket.send(b"end")
        self._socket.close(linger=1000)
        self._context.term()


def serve_bare() -> None:
    """A ROUTER that answers keys with as many rows, the same ones each time, and a push with a word."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    print(f"pslib-listening tcp://127.0.0.1:{port}", flush=True)
    rows = np.ones((ANSWER_ROWS_MAX, DIM), np.float32)
    while True:
        peer, head, *arrays = socket.recv_multipart(copy=False)
        what = bytes(head.buffer)[:4]
        if what == b"end":
            return
        answer: list[object] = [peer, b"done" + bytes(40)]
        if what == b"pull":
            answer.append(rows[: len(arrays[0]) // 8])
        socket.send_multipart(answer, copy=False)


@contextmanager
def bare_server() -> Iterator[Bare]:
    """A bare ZeroMQ server in a process of its own, and its client."""
    command = [sys.executable, __file__, "serve"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        asker = Bare(started(process))
        yield asker
        asker.close()
        process.wait(5)
    finally:
        process.kill()
        process.wait()


# --- another client that pushes ---------------------------------------------------------------------------


def push_at_full_rate(begin: Callable[[int], Callable[[], object]], keys_a_push: int, in_flight: int) -> None:
    """Push until standard input is closed, always so many at once; then say how many rows a second."""
    print("pslib-listening nowhere", flush=True)
    waits, number, start = [], 0, time.perf_counter()
    while not select.select([sys.stdin], [], [], 0)[0]:
        waits.append(begin(number))
        number += 1
        if len(waits) == in_flight:
            waits.pop(0)()
    seconds = time.perf_counter() - start
    for wait in waits:
        wait()
    print(json.dumps({"mrows_s": number * keys_a_push / seconds / 1e6}), flush=True)


def push_to(where: str, address: str, cluster_id: str, rows: int, keys_a_push: int, in_flight: int) -> None:
    """Push to pslib or to the bare server."""
    rng = np.random.default_rng(os.getpid())
    batches = [
        rng.choice(rows, keys_a_push, replace=False, shuffle=False).astype(np.uint64) * SCATTER
        for _ in range(4)
    ]
    gradients = np.full((keys_a_push, DIM), 0.01, np.float32)
    if where == "bare":
        bare = Bare(address)
        push_at_full_rate(lambda n: bare.begin_push(batches[n % 4], gradients), keys_a_push, in_flight)
        return
    stream = (1 << 63) + os.getpid()
    with joined(address, cluster_id) as client:
        client.setup(TABLES)
        push_at_full_rate(
            lambda n: client.push({"rows": (batches[n % 4], gradients)}, name=PushName(stream, n)).wait,
            keys_a_push,
            in_flight,
        )


@contextmanager
def pusher(
    where: str, address: str, cluster_id: str, rows: int, keys_a_push: int, in_flight: int
) -> Iterator[list[float]]:
    """A process that pushes at full rate; at the end the list holds its million rows a second."""
    numbers = [str(number) for number in (rows, keys_a_push, in_flight)]
    process = subprocess.Popen(
        [sys.executable, __file__, where, address, cluster_id, *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    rate: list[float] = []
    try:
        started(process)
        yield rate
        out, _ = process.communicate(timeout=20)
        rate.append(json.loads(out)["mrows_s"])
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve_bare()
    else:
        push_to(*sys.argv[1:4], *(int(number) for number in sys.argv[4:]))
