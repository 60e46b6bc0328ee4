"""Measure the cost of an update log: training rate in memory, with a log, and synced to disk; and recovery.

``python benchmarks/durability.py [--rounds R] [--rows N] [--recovery-rows N] [--only train|recovery]
[--folder DIR] [--json FILE] [--quick]``

Training is workload W of ``benchmarks/train.py`` (DeepFM, batch 4096, 26 sparse fields, one server and one
trainer process), run in turns with ``durability`` memory, log and disk; ratios are of runs of the same round.

Recovery fills one shard with N rows of 16 floats with Adagrad, which write their log; then a new shard reads
that log back, twice: once from the records of the pushes, once from images and the pushes after them (a tenth
of the rows). The log's pages are still in the memory of the system; a cold disk adds the time of reading.
"""

from __future__ import annotations

import os

from pslib.process.blas import kernels_for

os.environ |= kernels_for()  # before NumPy is loaded

import argparse
import json
import platform
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from pslib.shard.shard import Shard
from pslib.table.optimizers import Adagrad
from pslib.table.tables import PartSpec, TableSpec
from pslib.update_log import DiskFiles, RollingLog, ShardLog
from pslib.update_log.shard_log import recover
from pslib.wire.messages import Push, Setup

MODES = ("memory", "log", "disk")
DIM, BITS, PUSH_ROWS = 16, 12, 100_000
SPEC = TableSpec("item", (PartSpec("v", DIM, Adagrad(0.05)),))


def training(options: Any) -> dict[str, Any]:
    """Examples/s of each mode, in turns."""
    from train import data, job_of, train

    place, config = data(options.folder, options.rows, False)
    out = (options.folder / "durability").resolve()
    out.mkdir(exist_ok=True)
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    written: dict[str, int] = {}
    for number in range(options.rounds):
        for mode in MODES[number % 3 :] + MODES[: number % 3]:
            job = job_of("deepfm", 4096, place, config, options)
            job["cluster"] |= {"durability": mode}
            job["training"] |= {"warmup_batches": 0}  # 49 batches of --rows are all that there is
            del job["data"]["test"]
            shutil.rmtree(out / "train", ignore_errors=True)
            summary = train(job, 1, out)
            rates[mode].append(summary["examples_per_s"])
            written[mode] = sum(file.stat().st_size for file in (out / "train").glob("log/**/*.log"))
            print(
                f"    {mode:8} {rates[mode][-1]:10,.0f} examples/s, log of {written[mode]:,} bytes",
                flush=True,
            )
    ratios = {
        mode: [rate / memory for rate, memory in zip(rates[mode], rates["memory"], strict=True)]
        for mode in MODES[1:]
    }
    figures = {f"{mode}_per_s": statistics.median(found) for mode, found in rates.items()}
    figures |= {f"{mode}_of_memory": statistics.median(found) for mode, found in ratios.items()}
    return {"rates": rates, "ratios": ratios, "log_bytes": written, "figures": figures}


def _shard() -> Shard:
    return Shard(BITS, 16)


def _open(folder: Path) -> RollingLog:
    return RollingLog(DiskFiles(folder), {"benchmark": "durability"}, place=str(folder))


def _push(shard: Shard, number: int, keys: np.ndarray, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((keys.size, DIM), np.float32)
    nothing = np.empty(0, np.uint32), np.empty(0, np.float32)
    shard.push(Push(1, number, 0, number, 0, {"item": keys}, {"item": rows}, *nothing))


def recovery(options: Any) -> dict[str, Any]:
    """Seconds to read back a log of pushes, and one of images and pushes."""
    folder = options.folder / "durability-log"
    shutil.rmtree(folder, ignore_errors=True)
    rng, shard = np.random.default_rng(1), _shard()
    journal = ShardLog(_open(folder), shard, 1 << 50)
    shard.own(np.arange((1 << BITS) + 16))
    shard.setup(Setup({"tables": [SPEC.to_dict()]}, 0, {}, np.empty(0, np.float32)))
    keys = np.arange(options.recovery_rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for number, start in enumerate(range(0, keys.size, PUSH_ROWS)):
        _push(shard, number, keys[start : start + PUSH_ROWS], rng)
    figures = {f"pushes_{name}": value for name, value in _read_back(folder, shard).items()}
    journal.write_images()
    start = time.perf_counter()
    while journal.owes:
        journal.pace()
    figures["writing_images_s"] = time.perf_counter() - start
    for number, first in enumerate(range(0, keys.size // 10, PUSH_ROWS), start=1_000_000):
        _push(shard, number, keys[first : first + PUSH_ROWS], rng)
    figures |= {f"images_{name}": value for name, value in _read_back(folder, shard).items()}
    shutil.rmtree(folder)
    return {"rows": options.recovery_rows, "figures": figures}


def _read_back(folder: Path, shard: Shard) -> dict[str, float]:
    """Recover a twin, and compare it with the shard that wrote the log."""
    twin, start, cpu = _shard(), time.perf_counter(), time.process_time()
    opened = _open(folder)
    recover(opened, twin, lambda *_: None)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    for partition in range(0, 1 << BITS, 97):
        found = [store.export_partition(partition) for store in (twin.stores["item"], shard.stores["item"])]
        orders = [np.argsort(keys) for keys, _weights, _state in found]
        for mine, theirs in zip(*found, strict=True):
            assert np.array_equal(mine[orders[0]], theirs[orders[1]])
    rows = twin.stores["item"].rows
    assert rows == shard.stores["item"].rows
    return {
        "s": seconds,
        "cpu_s": cpu_s,
        "bytes": opened.size_bytes,
        "s_per_10_million_rows": seconds * 1e7 / rows,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200_000, help="examples to train")
    parser.add_argument("--recovery-rows", type=int, default=10_000_000)
    parser.add_argument("--only", choices=["train", "recovery"], default=None)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default=None)
    parser.set_defaults(servers=1, trainers=1, seed=1)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.recovery_rows = 1, 1_000_000
    options.folder.mkdir(parents=True, exist_ok=True)
    cases = {}
    for name, measure in (("train", training), ("recovery", recovery)):
        if options.only in (None, name):
            print(name)
            cases[name] = measure(options)
            for figure, value in cases[name]["figures"].items():
                print(f"    {figure:32} {value:16,.3f}")
    if options.json:
        machine = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine()}
        Path(options.json).write_text(json.dumps({**machine, "cases": cases}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
