"""Pull and push through real sockets between processes: rows/s of large requests, latency of small ones.

``python benchmarks/wire.py [--servers N] [--shard-threads K] [--rounds R] [--json FILE]`` starts a
coordinator and servers as processes of their own and is the one client itself. Each figure is the median over
rounds that take turns, so that a slow moment of the machine hits all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from pslib.client import Client
from pslib.clock import SystemClock
from pslib.config import ClusterConfig
from pslib.optimizers import RowwiseAdagrad
from pslib.tables import PartSpec, TableSpec
from pslib.transport import ZmqTransport

DIM = 16
KEYS = 10_000_000
REQUESTS = (13_312, 106_496)
SMALL = (1, 10, 100)


@contextmanager
def cluster(servers: int, shard_threads: int) -> Iterator[tuple[str, str]]:
    """Processes of a cluster; gives address and cluster id."""
    config = ClusterConfig(servers=servers, trainers=1, shard_threads=shard_threads)
    cluster_id = f"bench-{os.getpid()}"
    worker = [sys.executable, "-m", "launch.worker"]
    listen = ["--cluster-id", cluster_id, "--listen", "tcp://127.0.0.1:0"]
    coordinator = subprocess.Popen(
        [*worker, "coordinator", *listen, "--config", json.dumps(config.to_dict())],
        stdout=subprocess.PIPE,
        text=True,
    )
    processes = [coordinator]
    try:
        assert coordinator.stdout is not None
        lines = iter(coordinator.stdout.readline, "")
        address = next(line.split()[1] for line in lines if line.startswith("pslib-listening"))
        for _ in range(servers):
            command = [*worker, "server", *listen, "--coordinator", address]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        yield address, cluster_id
        for process in processes[1:]:
            process.wait(20)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def zipf_keys(rng: np.random.Generator, count: int) -> np.ndarray:
    """Distinct keys of a Zipf(1.05) draw, as a trainer would ask for them."""
    ranks = rng.zipf(1.05, 4 * count)
    ranks = ranks[ranks <= KEYS]
    return np.unique(ranks[:count].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def uniform_keys(rng: np.random.Generator, count: int) -> np.ndarray:
    """Distinct uniform keys."""
    return np.unique(rng.integers(0, KEYS, count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def make_rows(client: Client) -> None:
    """Make every row, so that what follows finds it."""
    client.setup([TableSpec("rows", (PartSpec("v", DIM, RowwiseAdagrad()),))])
    for start in range(0, KEYS, 500_000):
        keys = np.arange(start, start + 500_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        client.push({"rows": (keys, np.ones((keys.size, DIM), np.float32))}).wait()


def large_requests(client: Client, rng: np.random.Generator) -> dict[str, tuple[Callable[[], object], int]]:
    """By figure: a request, and how many rows it moves."""
    cases: dict[str, tuple[Callable[[], object], int]] = {}
    for kind, draw in (("uniform", uniform_keys), ("zipf", zipf_keys)):
        for count in REQUESTS:
            keys = draw(rng, count)
            gradients = np.full((keys.size, DIM), 0.01, np.float32)

            def pull(keys: np.ndarray = keys) -> object:
                return client.pull({"rows": keys}).wait()

            def push(keys: np.ndarray = keys, gradients: np.ndarray = gradients) -> object:
                return client.push({"rows": (keys, gradients)}).wait()

            cases[f"pull_{kind}_{count}_mrows_s"] = (pull, keys.size)
            cases[f"push_{kind}_{count}_mrows_s"] = (push, keys.size)
    return cases


def measure(client: Client, rounds: int) -> dict[str, float]:
    """All figures: million rows/s, and microseconds."""
    rng = np.random.default_rng(1)
    make_rows(client)
    cases = large_requests(client, rng)
    samples: dict[str, list[float]] = {name: [] for name in cases}
    small: dict[int, list[float]] = {count: [] for count in SMALL}
    for _ in range(rounds):
        for name, (work, _rows) in cases.items():
            samples[name].append(timed(work))
        for count in SMALL:
            keys = uniform_keys(rng, count)
            small[count] += [timed(lambda keys=keys: client.pull({"rows": keys}).wait()) for _ in range(10)]
    figures = {name: cases[name][1] / statistics.median(each) / 1e6 for name, each in samples.items()}
    for count, seconds in small.items():
        figures[f"pull_{count}_keys_p50_us"] = float(np.percentile(seconds, 50)) * 1e6
        figures[f"pull_{count}_keys_p99_us"] = float(np.percentile(seconds, 99)) * 1e6
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--shard-threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    with cluster(options.servers, options.shard_threads) as (address, cluster_id):
        client = Client(ZmqTransport(), address, cluster_id, SystemClock())
        try:
            figures = measure(client, options.rounds)
        finally:
            client.close()
    report = {
        "servers": options.servers,
        "shard_threads": options.shard_threads,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "figures": {name: round(value, 2) for name, value in figures.items()},
    }
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    for name, value in report["figures"].items():
        print(f"{name:36} {value:10.2f}")


if __name__ == "__main__":
    main()
