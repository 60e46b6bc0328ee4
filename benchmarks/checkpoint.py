"""Saving and loading a checkpoint against plain sequential writing and reading of as many bytes, in one run.

``python benchmarks/checkpoint.py [--rows N] [--dim D] [--shard-threads K] [--rounds R] [--folder DIR]
[--quick] [--json FILE]``

One server in this process holds N rows of D floats with row-wise Adagrad. A round does these in turn, each
onto fresh files that are synced before the clock stops, and removed after it:

    plain     the bytes of the checkpoint's files, in pieces of 8 MiB, one file after the other
    save      client.save_files and the manifest
    verify    what ``pslib checkpoint verify`` does
    load      into the server that has the rows already: it drops them, then takes them in again

Then, unless ``--no-serving``, the same of a server process that trains and reads meanwhile
(``checkpoint_serving.py``): throughput kept, p99 of short pulls, MB/s of the save, memory on top.

Rows do not change between rounds. Reported are medians, and the ratio of each round's save to the mean
of the plain writings before and after it: a disk's speed drifts by more than the difference that is looked
for.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from checkpoint_serving import measure_serving

from pslib import checkpoint
from pslib.checkpoint.verification import verify_checkpoint
from pslib.client.client import Client
from pslib.clock import SystemClock
from pslib.cluster import Embedded
from pslib.config import ClusterConfig
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec

PIECE_BYTES = 8 << 20
PUSH_ROWS = 250_000


def fill(client: Client, spec: TableSpec, rows: int) -> None:
    """Make all rows, with state."""
    client.setup([spec])
    rng = np.random.default_rng(1)
    for start in range(0, rows, PUSH_ROWS):
        keys = np.arange(start, min(start + PUSH_ROWS, rows), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        client.push({spec.name: (keys, rng.standard_normal((keys.size, spec.dim), np.float32))}).wait()


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def write_plain(folder: Path, sizes: list[int], piece: memoryview) -> None:
    """Files of these sizes, one after the other, each synced."""
    folder.mkdir()
    for number, size in enumerate(sizes):
        with open(folder / f"{number}.bin", "wb", buffering=0) as file:
            for start in range(0, size, PIECE_BYTES):
                file.write(piece[: min(PIECE_BYTES, size - start)])
            os.fsync(file.fileno())


def save(client: Client, spec: TableSpec, folder: Path) -> list[int]:
    """A complete checkpoint; the sizes of its files."""
    token = secrets.token_hex(4)  # the same name would be the same save, asked for again
    files = [checkpoint.ManifestFile(**entry) for entry in client.save_files(str(folder), token)]
    checkpoint.commit(str(folder), checkpoint.Manifest([spec.to_dict()], {"length": 0}, files, 1))
    return [entry.bytes for entry in files]


def measure(client: Client, spec: TableSpec, folder: Path, rounds: int) -> dict[str, float]:
    """Seconds by what was done, medians, and the ratio."""
    piece = memoryview(np.random.default_rng(2).bytes(PIECE_BYTES))
    first = folder / "first"
    sizes = save(client, spec, first)
    seconds: dict[str, list[float]] = {"plain": [], "save": [], "verify": [], "load": []}

    def plain() -> None:
        seconds["plain"].append(timed(lambda: write_plain(folder / "plain", sizes, piece)))
        shutil.rmtree(folder / "plain")

    for _ in range(rounds):
        plain()
        seconds["save"].append(timed(lambda: save(client, spec, folder / "save")))
        shutil.rmtree(folder / "save")
        seconds["verify"].append(timed(lambda: verify_checkpoint(str(first))))
        seconds["load"].append(timed(lambda: client.load(str(first))))
    plain()
    ratios = [
        (seconds["plain"][at] + seconds["plain"][at + 1]) / 2 / seconds["save"][at] for at in range(rounds)
    ]
    figures = {f"{name}_s": statistics.median(each) for name, each in seconds.items()}
    for name, each in seconds.items():
        figures[f"{name}_mb_s"] = sum(sizes) / 1e6 / statistics.median(each)
    figures["bytes"] = sum(sizes)
    figures["save_to_plain"] = statistics.median(ratios)
    figures["save_to_plain_worst"] = min(ratios)
    figures["load_s_10_million_rows"] = figures["load_s"] * 1e7 / client.stats()["rows"]
    return figures


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--shard-threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", default=None, help="on the disk to measure (default: a temporary one)")
    parser.add_argument("--no-serving", action="store_true", help="only the idle part")
    parser.add_argument("--no-idle", action="store_true", help="only the part that serves meanwhile")
    parser.add_argument("--quick", action="store_true", help="200,000 rows, 2 rounds")
    parser.add_argument("--json", default=None, metavar="FILE")
    options = parser.parse_args()
    rows, rounds = (200_000, 2) if options.quick else (options.rows, options.rounds)
    spec = TableSpec("rows", (PartSpec("v", options.dim, RowwiseAdagrad()),))
    embedded = Embedded(ClusterConfig(servers=1, trainers=1, shard_threads=options.shard_threads))
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="pslib-checkpoint-") as folder:
        figures: dict[str, float] = {}
        client = Client(embedded.transport, embedded.address, embedded.cluster_id, SystemClock())
        try:
            if not options.no_idle:
                fill(client, spec, rows)
                figures = measure(client, spec, Path(folder), rounds)
        finally:
            client.close()
            embedded.close()
        if not options.no_serving:
            figures |= measure_serving(rows, options.dim, options.shard_threads, min(rounds, 3), Path(folder))
    report = {
        "rows": rows,
        "dim": options.dim,
        "shard_threads": options.shard_threads,
        "rounds": rounds,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "figures": {name: round(value, 3) for name, value in figures.items()},
    }
    text = json.dumps(report, indent=1)
    if options.json:
        Path(options.json).write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
