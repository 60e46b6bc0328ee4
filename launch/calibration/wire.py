"""Cost of requests at both ends, between real processes over loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil

from launch.calibration.fit import fit_costs
from launch.calibration.timing import Spent, repeat
from pslib.client.client import Client, PendingPull, PendingPush
from pslib.planner.coefficients import TableCost, row_cost
from pslib.planner.demand import HEADER_BYTES
from pslib.planner.workload import KEY_BYTES
from pslib.table.optimizers import Adam, RowwiseAdagrad
from pslib.table.tables import DenseSpec, PartSpec, TableSpec

__all__ = ["few_keys", "loopback_mb_s", "measure_checkpoint", "measure_wire", "server_cpu", "set_up"]

DIMS = (4, 64)
COUNTS = (1, 1_000, 10_000)
DENSE = 200_000
AT_ONCE, AT_ONCE_LARGE, LARGE = 16, 3, 5_000
"""Concurrent requests: small ones, and those of `LARGE` keys or more."""
LOOPBACK_BYTES = 1 << 28


def set_up(client: Client, rows: int) -> None:
    """Set up tables with their rows, and dense parameters."""
    tables = [TableSpec(f"rows{dim}", (PartSpec("v", dim, RowwiseAdagrad()),)) for dim in DIMS]
    client.setup(tables, DenseSpec(DENSE, Adam()), np.zeros(DENSE, np.float32))
    for table, dim in zip(tables, DIMS, strict=True):
        for start in range(0, rows, 50_000):
            keys = _keys(np.arange(start, min(start + 50_000, rows)))
            client.push({table.name: (keys, np.ones((keys.size, dim), np.float32))}).wait()


def _keys(numbers: Any) -> Any:
    return np.asarray(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def server_cpu() -> tuple[Callable[[], float], Callable[[], int]]:
    """Return processor seconds so far and private bytes of the server on this trainer's machine."""
    parent = psutil.Process().parent()
    siblings = parent.children() if parent else []
    server = next(one for one in siblings if {"launch.worker.main", "server"} <= set(one.cmdline()))

    def seconds() -> float:
        times = server.cpu_times()
        return float(times.user + times.system)

    return seconds, lambda: int(server.memory_full_info().uss)


def few_keys(client: Client, seconds: float, at_once: int = AT_ONCE) -> Spent:
    """Return 64 keys to pull: some for every thread of a server, with little work for each.

    Among concurrent requests such a pull costs each end less than half of a single one, since threads that
    are awake need no wake-up (2 cores, 2026-11-21: server 350 us alone, 140 us of 16; client 470 and 210).
    """
    cpu, _ = server_cpu()
    keys = _keys(np.arange(64))
    return _each(lambda: client.pull({f"rows{DIMS[0]}": keys}), at_once, seconds, cpu)


def _each(
    ask: Callable[[], PendingPull | PendingPush], at_once: int, seconds: float, cpu: Callable[[], float]
) -> Spent:
    """Return the time per request of several concurrent requests."""

    def ask_some() -> None:
        for pending in [ask() for _ in range(at_once)]:
            pending.wait()

    spent = repeat(ask_some, seconds, cpu)
    return Spent(spent.wall_s / at_once, spent.own_s / at_once, spent.other_s / at_once)


def measure_wire(client: Client, rows: int, costs: list[TableCost], seconds: float) -> dict[str, float]:
    """Measure costs of messages, rows, bytes and wake-ups at both ends."""
    cpu, _ = server_cpu()
    server, client_rows = [], []
    for dim, count, pushes, ask in _requests(client, rows):
        spent = _each(ask, AT_ONCE if count < LARGE else AT_ONCE_LARGE, seconds, cpu)
        of_row = row_cost(costs, "float32", dim)
        row_us = (of_row.push_us if pushes else of_row.pull_us) * count
        in_bytes = HEADER_BYTES + count * (KEY_BYTES + 4 * dim * pushes)
        out_bytes = HEADER_BYTES + count * 4 * dim * (1 - pushes)
        moved = (in_bytes + out_bytes) / 1e6
        server.append((1.0, count, moved, max(spent.other_s * 1e6 - row_us, spent.other_s * 1e5)))
        client_rows.append((1.0, count, moved, spent.own_s * 1e6))
    at_server, at_client = np.array(server), np.array(client_rows)
    message, row, mb = fit_costs(at_server[:, :3], at_server[:, 3])
    own_message, own_row, own_mb = fit_costs(at_client[:, :3], at_client[:, 3])
    small, alone = few_keys(client, seconds), few_keys(client, seconds, 1)
    return {
        "server_message_us": float(message),
        "server_row_us": float(row),
        "server_mb_us": float(mb),
        "client_message_us": float(own_message),
        "client_row_us": float(own_row),
        "client_mb_us": float(own_mb),
        "hop_us": max(0.0, (alone.wall_s - small.own_s - small.other_s) * 1e6),
        "dense_step_us": _dense_step_us(client, seconds, cpu, float(message), float(mb)),
    }


def _requests(
    client: Client, rows: int
) -> Iterator[tuple[int, int, int, Callable[[], PendingPull | PendingPush]]]:
    """Yield dim, number of keys, 1 for a push, and a function that sends such a request with new keys."""
    rng = np.random.default_rng(1)
    for dim in DIMS:
        for count in COUNTS:
            name = f"rows{dim}"
            pools = [_keys(rng.permutation(rows)[:count]) for _ in range(8)]
            gradients = np.full((count, dim), 0.01, np.float32)

            def pull(name: str = name, pools: list[Any] = pools) -> PendingPull:
                pools.append(pools.pop(0))
                return client.pull({name: pools[0]})

            def push(name: str = name, pools: list[Any] = pools, gradients: Any = gradients) -> PendingPush:
                pools.append(pools.pop(0))
                return client.push({name: (pools[0], gradients)})

            yield dim, count, 0, pull
            yield dim, count, 1, push


def _dense_step_us(
    client: Client, seconds: float, cpu: Callable[[], float], message: float, mb: float
) -> float:
    gradient = np.full(DENSE, 0.001, np.float32)

    spent = _each(lambda: client.push({}, gradient), AT_ONCE_LARGE, seconds, cpu)
    moved = message + mb * (2 * HEADER_BYTES + 4 * DENSE) / 1e6
    return max(0.0, spent.other_s * 1e6 - moved) / DENSE * 1e6


def measure_checkpoint(client: Client, folder: str) -> float:
    """Measure the MB/s at which a server writes its rows, as bytes before compression."""
    parameters = client.stats()["parameters"]
    start = time.perf_counter()
    entries = client.save_files(folder, "calibrate")
    took_s = time.perf_counter() - start
    written = sum(int(entry["bytes"]) for entry in entries)
    return max(written, 4 * int(parameters)) / took_s / 1e6


def loopback_mb_s() -> float:
    """Measure MB/s through a TCP socket over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = threading.Thread(target=_send, args=(listening.getsockname(),))
        start = time.perf_counter()
        sender.start()
        connection, _ = listening.accept()
        with connection:
            buffer, got = bytearray(1 << 20), 0
            while count := connection.recv_into(buffer):
                got += count
        sender.join()
    return got / (time.perf_counter() - start) / 1e6


def _send(address: tuple[str, int]) -> None:
    piece = bytes(1 << 20)
    with socket.create_connection(address) as connection:
        for _ in range(LOOPBACK_BYTES // len(piece)):
            connection.sendall(piece)
