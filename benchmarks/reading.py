"""Rows/s from Parquet to keyed batches, beside bare pyarrow that scans the same columns.

``python benchmarks/reading.py [--set clicks integers sessions] [--rows 2000000] [--batch-rows 4096]
[--folder DIR] [--cpu] [--json FILE] [--quick]``: the clicks of `train.py` (26 sparse and 13 dense fields;
strings as in click logs, or int64), and sessions (a list column of 2 to 40 items). One thread each, in turns
in one run, the medians of ``--turns`` turns; files are in the page cache.

- *keyed*: one epoch of `LeaseReader.batches`: decoded, hashed, shuffled in windows of 262,144 rows, keys of
  each batch made distinct;
- *arrow*: `pyarrow.parquet.ParquetFile.iter_batches` over the same row groups and columns, batches of 65,536
  rows thrown away; the faster of strings as strings, and of strings as dictionaries where the file has them,
  with Arrow's own allocator and with glibc's.

Memory is kept as in a trainer (`launch.worker.main.keep_memory`): *keyed* reads with glibc's allocator, which
never gives freed memory back. Both sides have the memory of their last turn: the scan from its allocator,
the reader, a fresh one each turn, also the window of the one before. With ``--turns 1`` neither has any. The
bound is keyed / arrow >= 0.5. ``--cpu`` takes the processor time of the process instead of the clock's, for a
machine with other work. ``--quick`` reads 200,000 rows of each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from launch.worker.main import keep_memory
from pslib.data import LeaseReader, Order, ParquetData, default_lease_rows
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.schema import Schema

sys.path.insert(0, str(Path(__file__).parent))
from train import FADE, vocabularies  # the folder of benchmarks is no package

BOUND = 0.5
SCAN_ROWS = 65_536
ITEMS = 50_000
ARROWS_OWN = pa.default_memory_pool()
"""Before `keep_memory` names another one."""


def clicks(folder: Path, rows: int, kind: str) -> tuple[Path, Schema]:
    """The data of `train.py`, made unless it is there; with ``integer`` keys as int64."""
    config = GeneratorConfig(
        train_rows=rows, test_rows=1000, vocabularies=vocabularies(False), seed=7, fade=FADE, sparse_type=kind
    )
    place = folder / f"reading_{kind}_{rows}"
    if not (place / "generated.json").exists():
        generate(place, config, overwrite=True)
    return place / "train.parquet", generated_schema(config)


def sessions(folder: Path, rows: int) -> tuple[Path, Schema]:
    """Sessions of 2 to 40 items, half as many as rows are asked for; made unless they are there."""
    path = folder / f"reading_sessions_{rows}.parquet"
    if not path.exists():
        rng = np.random.default_rng(7)
        lengths = np.minimum(1 + rng.geometric(0.2, rows // 2), 40)
        items = (rng.zipf(1.2, lengths.sum()) % ITEMS).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(items))
        pq.write_table(pa.table({"items": lists}), path, row_group_size=SCAN_ROWS)
    return path, Schema(label=None, ragged=["items"])


def keyed(data: ParquetData, batch_rows: int, rows: int) -> Callable[[], int]:
    """Work that reads batches of about so many rows of an epoch; gives how many."""
    order = Order(7, [group.rows for group in data.row_groups], default_lease_rows(data.rows, batch_rows))

    def work() -> int:
        seen = 0
        with closing(LeaseReader(data, data.schema, order, batch_rows)) as reader:
            for lease in range(order.leases(0)):
                seen += sum(len(batch) for batch in reader.batches(0, lease))
                if seen >= rows:
                    break
        return seen

    return work


def scanned(data: ParquetData, coded: list[str]) -> Callable[[], int]:
    """Work that scans all of the data; gives the rows."""

    def work() -> int:
        seen = 0
        with pq.ParquetFile(data.row_groups[0].file, read_dictionary=coded) as file:
            batches = file.iter_batches(SCAN_ROWS, columns=list(data.schema.columns), use_threads=False)
            for batch in batches:
                seen += len(batch)
        return seen

    return work


def measure(path: Path, schema: Schema, options: argparse.Namespace) -> dict[str, float]:
    """Rows/s of each, median over the turns, and the ratio to the faster scan (median of the turns')."""
    data = ParquetData(path, schema)
    strings = [name for name in schema.columns if pa.types.is_string(pq.read_schema(path).field(name).type)]
    own, kept = ARROWS_OWN, pa.system_memory_pool()
    ways = {"keyed": (kept, keyed(data, options.batch_rows, data.rows))}
    for suffix, coded in [("", []), ("_coded", strings)][: 2 if strings else 1]:
        ways[f"arrow{suffix}"] = own, scanned(data, coded)
        ways[f"arrow{suffix}_glibc"] = kept, scanned(data, coded)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    pa.set_cpu_count(1)
    clock = time.process_time if options.cpu else time.perf_counter
    for _ in range(options.turns):
        for name, (pool, work) in ways.items():
            pa.set_memory_pool(pool)
            start = clock()
            rows = work()
            rates[name].append(rows / (clock() - start))
    ratios = [mine / max(others) for mine, *others in zip(*rates.values(), strict=True)]
    pa.set_memory_pool(own)
    figures = {f"{name}_rows_per_s": statistics.median(some) for name, some in rates.items()}
    return figures | {"of_arrow": statistics.median(ratios), "bound": BOUND}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sets = ("clicks", "integers", "sessions")
    parser.add_argument("--set", nargs="+", choices=sets, default=list(sets))
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch-rows", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rows = 200_000
    options.folder.mkdir(parents=True, exist_ok=True)
    keep_memory()
    cases = {}
    for name in options.set:
        kind = {"clicks": "string", "integers": "integer"}.get(name)
        place = clicks(options.folder, options.rows, kind) if kind else sessions(options.folder, options.rows)
        cases[name] = measure(*place, options)
        for figure, value in cases[name].items():
            print(f"{name:10} {figure:24} {value:14,.3f}")
    if options.json:
        machine = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine()}
        plain = {
            key: str(value) if key in ("folder", "json") else value for key, value in vars(options).items()
        }
        options.json.write_text(json.dumps({**machine, "options": plain, "cases": cases}, indent=1))


if __name__ == "__main__":
    main()
