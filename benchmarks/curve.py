"""Measure the cost of encryption: pull and push through real sockets, plain against CURVE, taking turns.

``python benchmarks/curve.py [--rounds R] [--wire TYPE] [--quick] [--json FILE]`` starts two clusters of one
server process each, one plain and one with keys, and is the one client of both. Each figure is the median
over rounds in which plain and encrypted take turns; the ratio is the median of the rounds' own ratios.
``--training demo`` or ``--training headline`` compares whole runs of ``pslib train`` instead: the
demonstration (2 servers, 2 trainers), or DeepFM with dim 16 and 400-400-400 (1 server, 1 trainer, batches of
4,096).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from launch.job.yaml12 import write_yaml
from launch.runs.demo import demo_job
from pslib.client.client import Client
from pslib.clock import SystemClock
from pslib.config import ClusterConfig
from pslib.data.synthetic.generator import GeneratorConfig, generate
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec
from pslib.transport import ZmqTransport, read_keys
from pslib.transport.keys import make_keys, write_keys

DIM = 16
MIX = np.uint64(0x9E3779B97F4A7C15)
REQUESTS = (1, 1_000, 13_312, 106_496)
SMALL_CALLS = 20
"""Calls of a small request that are timed together: one alone is shorter than a switch of threads."""


@contextmanager
def server(keys: Path | None) -> Iterator[tuple[str, str]]:
    """Coordinator and server as processes; gives address and cluster id."""
    cluster_id = f"curve-{os.getpid()}-{'keys' if keys else 'plain'}"
    worker = [sys.executable, "-m", "launch.worker.main"]
    common = ["--cluster-id", cluster_id, "--listen", "tcp://127.0.0.1:0"]
    common += ["--keys", str(keys / "server.keys")] if keys else []
    config = json.dumps(ClusterConfig().to_dict())
    processes: list[subprocess.Popen[str]] = [
        subprocess.Popen(
            [*worker, "coordinator", *common, "--config", config], stdout=subprocess.PIPE, text=True
        )
    ]
    try:
        assert processes[0].stdout is not None
        lines = iter(processes[0].stdout.readline, "")
        address = next(line.split()[1] for line in lines if line.startswith("pslib-listening"))
        command = [*worker, "server", *common, "--coordinator", address]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True))
        yield address, cluster_id
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def client(keys: Path | None, rows: int) -> Iterator[Client]:
    """A client of a cluster of its own whose rows are made."""
    with server(keys) as (address, cluster_id):
        transport = ZmqTransport(keys=read_keys(keys / "trainer.keys") if keys else None)
        joined = Client(transport, address, cluster_id, SystemClock())
        joined.setup([TableSpec("rows", (PartSpec("v", DIM, RowwiseAdagrad()),))])
        for start in range(0, rows, 250_000):
            made = np.arange(start, min(start + 250_000, rows), dtype=np.uint64) * MIX
            joined.push({"rows": (made, np.ones((made.size, DIM), np.float32))}).wait()
        try:
            yield joined
        finally:
            joined.close()
            transport.close()


def seconds(work: Callable[[], object], calls: int) -> float:
    """Seconds of one call, from the mean of some."""
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def works(one: Client, keys: np.ndarray, gradients: np.ndarray, wire: str) -> dict[str, Callable[[], object]]:
    """A pull and a push of these keys."""
    return {
        "pull": lambda: one.pull({"rows": keys}, rows_as=wire).wait(),
        "push": lambda: one.push({"rows": (keys, gradients)}, gradients_as=wire).wait(),
    }


def measure(clients: dict[str, Client], rows: int, rounds: int, wire: str) -> list[dict[str, float | str]]:
    """A line a verb and size: microseconds and million rows a second, plain and encrypted, and the ratio."""
    rng, lines = np.random.default_rng(1), []
    for count in REQUESTS:
        keys = np.unique(rng.integers(0, rows, count, dtype=np.uint64) * MIX)
        gradients = np.full((keys.size, DIM), 0.01, np.float32)
        calls = SMALL_CALLS if count <= 1_000 else 1
        cases = {name: works(one, keys, gradients, wire) for name, one in clients.items()}
        for verb in ("pull", "push"):
            taken: dict[str, list[float]] = {name: [] for name in clients}
            for turn in range(rounds):
                for name in sorted(clients, reverse=turn % 2 == 0):
                    taken[name].append(seconds(cases[name][verb], calls))
            line: dict[str, float | str] = {"verb": verb, "keys": int(keys.size)}
            for name, each in taken.items():
                median_s = statistics.median(each)
                line[f"{name}_us"] = round(median_s * 1e6)
                line[f"{name}_mrows_s"] = round(keys.size / median_s / 1e6, 2)
            pairs = zip(taken["plain"], taken["curve"], strict=True)
            line["rate_kept"] = round(statistics.median(plain / curve for plain, curve in pairs), 2)
            lines.append(line)
    return lines


def job(kind: str, folder: Path) -> Path:
    """The job file of a training."""
    plain = demo_job(str(folder), str(folder / "run"))
    if kind == "headline":
        plain["model"] = {"name": "deepfm", "dim": 16, "hidden": [400, 400, 400]}
        plain["training"]["batch_rows"] = 4096
        plain["cluster"] = {"servers": 1, "trainers": 1}
    file = folder / "job.yaml"
    file.write_text(write_yaml(plain), encoding="utf-8")
    return file


def trained(file: Path, keys: Path | None) -> float:
    """Examples/s of one run."""
    more = ["--keys", str(keys)] if keys else []
    command = [sys.executable, "-m", "launch.cli.main", "train", str(file), "--overwrite", "--quiet", *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return float(json.loads((file.parent / "run" / "summary.json").read_text())["examples_per_s"])


def compare_training(kind: str, folder: Path, keys: Path, rounds: int, rows: int) -> dict[str, float | str]:
    """Examples/s, plain and encrypted, and the ratio: medians."""
    generate(folder, GeneratorConfig(train_rows=rows, test_rows=1_000), overwrite=True)
    file = job(kind, folder)
    taken: dict[str, list[float]] = {"plain": [], "curve": []}
    for turn in range(rounds):
        for name in sorted(taken, reverse=turn % 2 == 0):
            taken[name].append(trained(file, keys if name == "curve" else None))
    ratios = [curve / plain for plain, curve in zip(taken["plain"], taken["curve"], strict=True)]
    figures = {f"{name}_examples_s": round(statistics.median(each)) for name, each in taken.items()}
    return {"training": kind, "rows": rows, **figures, "rate_kept": round(statistics.median(ratios), 2)}


def compare_requests(keys: Path, rows: int, rounds: int, wire: str) -> list[dict[str, float | str]]:
    """`measure` on two clusters."""
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(client(place, rows))
            for name, place in (("plain", None), ("curve", keys))
        }
        return measure(clients, rows, rounds, wire)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=None, help="default: 30, of whole trainings 3")
    parser.add_argument("--rows", type=int, default=None, help="default: 2,000,000, of a training 300,000")
    parser.add_argument("--wire", default="float32", help="type of rows and gradients on the wire")
    parser.add_argument("--training", choices=("demo", "headline"))
    parser.add_argument("--quick", action="store_true", help="few rounds, few rows")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    usual = (1, 40_000) if options.training and options.quick else (3, 300_000) if options.training else None
    usual = usual or ((5, 200_000) if options.quick else (30, 2_000_000))
    rounds, rows = options.rounds or usual[0], options.rows or usual[1]
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        write_keys(keys, make_keys())
        if options.training:
            lines = [compare_training(options.training, Path(folder), keys, rounds, rows)]
        else:
            lines = compare_requests(keys, rows, rounds, options.wire)
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "wire": options.wire,
        "rounds": rounds,
        "rows": rows,
        "lines": lines,
    }
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    print("  ".join(f"{name:>16}" for name in lines[0]))
    for line in lines:
        print("  ".join(f"{value:>16}" for value in line.values()))


if __name__ == "__main__":
    main()
