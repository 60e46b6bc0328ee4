"""The table beside the memory it lives in, and beside what people would use instead; one core.

``python benchmarks/table.py [--rows N ...] [--quick] [--json FILE] [--chart FILE]``

Contenders take turns, batch by batch, and each figure is a median over their batches in processor time of the
thread, so that a neighbour on the machine hits all of them alike or not at all. Compare ratios: absolute
figures belong to the machine. Peers that are not there (a C++ compiler with absl, torch) are left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.distinct import distinct
from cython_ext.ragged_pool import pool_rows, pool_rows_gradient
from cython_ext.store import Store, vector_levels
from pslib.initializers import Uniform
from pslib.optimizers import RowwiseAdagrad
from pslib.stores import make_store
from pslib.tables import PartSpec, TableSpec

HERE = Path(__file__).parent
DIM = 16
BATCH = 106_496  # 4,096 examples of 26 fields
SMALL_BATCH = 4_096
LINE = 64
PARTITION_BITS = 12
ABSL_ROWS_MAX = 20_000_000  # its peak while it doubles would not fit beside the table
DIMS = (1, 4, 8, 16, 32, 64, 128)

Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]
Places = NDArray[np.int64]


def compiled(source: str, *flags: str) -> ctypes.CDLL | None:
    """A shared library of one source file of this folder; None where it can't be compiled."""
    compiler = "g++" if source.endswith("cpp") else "gcc"
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/library.so"
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", str(HERE / source), "-o", library]
        try:
            subprocess.run([*command, *flags], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return ctypes.CDLL(library)


def absl_library() -> ctypes.CDLL | None:
    try:
        found = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "absl_flat_hash_map"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    library = compiled("table_absl.cpp", "-std=c++17", *found.stdout.split())
    if library is not None:
        library.absl_make.restype = ctypes.c_void_p
        library.absl_bytes.restype = ctypes.c_int64
    return library


def limits_library() -> ctypes.CDLL:
    library = compiled("table_limits.c")
    if library is None:
        raise SystemExit("benchmarks/table.py: expected gcc, which compiles the limits of memory; install it")
    library.lines_make.restype = ctypes.c_void_p
    for name in ("gather_bare", "gather_copy", "gather_update"):
        getattr(library, name).restype = ctypes.c_float
    return library


def at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def n_of(count: int) -> ctypes.c_int64:
    return ctypes.c_int64(count)


def store_of(dim: int) -> Store:
    part = PartSpec("v", dim, RowwiseAdagrad(learning_rate=0.05), Uniform(0.01))
    return make_store(TableSpec("t", (part,)), PARTITION_BITS)


def seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def medians(work: dict[str, Callable[[], object]], rounds: int, keys_a_call: int) -> dict[str, float]:
    """Million keys a second of each; they take turns."""
    spent: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            spent[name].append(seconds(call))
    return {name: round(1e-6 * keys_a_call / float(np.median(some)), 2) for name, some in spent.items()}


def resident_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# --- growth: before anything else in the process takes memory


def growth(rows: int, dim: int) -> tuple[Store, Keys, dict[str, float]]:
    """Insert all keys in batches of 4,096; memory and the slowest batch on the way."""
    keys = np.random.default_rng(0).integers(0, 1 << 64, rows, np.uint64)
    gradients = np.random.default_rng(1).standard_normal((SMALL_BATCH, dim)).astype(np.float32)
    store = store_of(dim)
    before, began = resident_bytes(), resident_peak_bytes()
    spent, work = [], []
    for start in range(0, rows - SMALL_BATCH + 1, SMALL_BATCH):
        some = keys[start : start + SMALL_BATCH]
        wall, own = time.perf_counter(), time.thread_time()
        store.push(some, gradients)
        spent.append(time.thread_time() - own)
        work.append(time.perf_counter() - wall)
    late = np.asarray(spent[len(spent) // 50 :])  # from the first fiftieth on: from 1 to 50 million rows
    stats = store.stats()
    held = resident_bytes() - before
    used = stats["index_bytes"] + stats["row_bytes"] + stats["directory_bytes"]
    return (
        store,
        keys[: store.rows],
        {
            "insert": round(1e-6 * SMALL_BATCH / float(np.median(spent)), 2),
            "insert_mean": round(1e-6 * SMALL_BATCH * len(spent) / float(np.sum(spent)), 2),
            "worst_batch_against_median": round(float(late.max() / np.median(late)), 1),
            "bytes_a_row": round(used / store.rows, 2),
            "index_bytes_a_row": round(stats["index_bytes"] / store.rows, 2),
            "resident_bytes_a_row": round(held / store.rows, 2),
            "peak_against_settled": round((resident_peak_bytes() - min(began, before)) / max(held, 1), 3),
        },
    )


# --- look-up and update beside the limits and the peers


class Turn:
    """Keys and random places, new for every turn."""

    def __init__(self, keys: Keys, index_lines: int, batch: int) -> None:
        self.rng = np.random.default_rng(2)
        self.all, self.index_lines, self.batch = keys, index_lines, batch
        self.next()

    def next(self) -> None:
        self.numbers = self.rng.integers(0, len(self.all), self.batch)
        self.keys = self.all[self.numbers]
        self.index_places = self.rng.integers(0, self.index_lines, self.batch)


def gathers(library: ctypes.CDLL, turn: Turn, rows: int, out: Floats) -> dict[str, Callable[[], object]]:
    index, lines, state = (
        ctypes.c_void_p(library.lines_make(n_of(count))) for count in (turn.index_lines, rows, rows // 16 + 1)
    )
    many = n_of(turn.batch)
    return {
        "bare": lambda: library.gather_bare(lines, at(turn.numbers), many),
        "same_lines_look_up": lambda: library.gather_copy(
            index, at(turn.index_places), lines, at(turn.numbers), many, at(out)
        ),
        "same_lines_update": lambda: library.gather_update(
            index, at(turn.index_places), lines, at(turn.numbers), state, many, at(out)
        ),
    }


def absl_peer(turn: Turn, keys: Keys, gradients: Floats, out: Floats) -> dict[str, Callable[[], object]]:
    library = absl_library()
    if library is None or len(keys) > ABSL_ROWS_MAX:
        return {}
    table = ctypes.c_void_p(library.absl_make())

    def insert(some: Keys) -> None:
        library.absl_push(table, at(some), n_of(len(some)), at(gradients))

    spent = []
    for start in range(0, len(keys) - BATCH + 1, BATCH):
        spent.append(seconds(partial(insert, keys[start : start + BATCH])) / BATCH)
    many = n_of(turn.batch)
    print(f"absl: insert {1e-6 / float(np.median(spent)):.1f} million/s,", end=" ")
    print(f"{library.absl_bytes(table) / len(keys):.0f} bytes a row")
    return {
        "absl_look_up": lambda: library.absl_pull(table, at(turn.keys), many, at(out)),
        "absl_update": lambda: library.absl_push(table, at(turn.keys), many, at(gradients)),
    }


def torch_peer(turn: Turn, rows: int) -> dict[str, Callable[[], object]]:
    """EmbeddingBag over a dense tensor that is indexed by row number: no hashing, no growth."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    bag = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True)
    offsets = torch.arange(turn.batch)

    def look_up() -> None:
        with torch.no_grad():
            bag(torch.from_numpy(turn.numbers), offsets)

    return {"torch_embedding_bag_look_up": look_up}


def measure(rows: int, rounds: int, peers: bool) -> dict[str, float]:
    store, keys, figures = growth(rows, DIM)
    print(json.dumps(figures), flush=True)
    gradients = np.random.default_rng(3).standard_normal((BATCH, DIM)).astype(np.float32)
    out = np.empty((BATCH, DIM), np.float32)
    turn = Turn(keys, store.stats()["index_bytes"] // LINE, BATCH)
    contenders = gathers(limits_library(), turn, len(keys), out)
    contenders |= {
        "look_up": lambda: store.pull(turn.keys, out),
        "update": lambda: store.push(turn.keys, gradients),
    }
    if peers:
        contenders |= absl_peer(turn, keys, gradients, out) | torch_peer(turn, len(keys))
    work: dict[str, Callable[[], object]] = {}
    for place, (name, call) in enumerate(contenders.items()):
        work[f"turn{place}"] = turn.next  # new keys for each: what the one before has read is in the cache
        work[name] = call
    speeds = {
        name: speed for name, speed in medians(work, rounds, BATCH).items() if not name.startswith("turn")
    }
    return figures | speeds | ratios(speeds)


def ratios(speeds: dict[str, float]) -> dict[str, float]:
    pairs = [("look_up", "bare"), ("look_up", "same_lines_look_up"), ("update", "bare")]
    pairs += [("update", "same_lines_update"), ("look_up", "absl_look_up"), ("update", "absl_update")]
    pairs += [("look_up", "torch_embedding_bag_look_up")]
    return {f"{a}/{b}": round(speeds[a] / speeds[b], 2) for a, b in pairs if b in speeds}


# --- batch helpers


def zipf_keys(count: int) -> Keys:
    """Keys of 10 million ranks, Zipf(1.05)."""
    weight = np.cumsum(np.arange(1, 10_000_001, dtype=np.float64) ** -1.05)
    ranks = np.searchsorted(weight, np.random.default_rng(4).random(count) * weight[-1])
    return ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def helpers(rounds: int) -> dict[str, float]:
    keys = zipf_keys(BATCH)
    found, inverse = distinct(keys)
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((len(found), DIM)).astype(np.float32)
    lengths = rng.integers(1, 51, BATCH // 26)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = inverse[rng.integers(0, BATCH, offsets[-1])]
    gradients = rng.standard_normal((len(lengths), DIM)).astype(np.float32)
    repeated = np.repeat(np.arange(len(lengths)), lengths)

    def add_at() -> None:
        np.add.at(np.zeros_like(rows), places, gradients[repeated])

    speeds = medians(
        {
            "distinct": lambda: distinct(keys),
            "numpy_unique": lambda: np.unique(keys, return_inverse=True),
            "pool": lambda: pool_rows(rows, places, offsets, False),
            "numpy_take_reduceat": lambda: np.add.reduceat(rows.take(places, axis=0), offsets[:-1], axis=0),
            "pool_gradient": lambda: pool_rows_gradient(gradients, places, offsets, len(found), False),
            "numpy_add_at": add_at,
        },
        rounds,
        BATCH,
    )
    pairs = [
        ("distinct", "numpy_unique"),
        ("pool", "numpy_take_reduceat"),
        ("pool_gradient", "numpy_add_at"),
    ]
    return speeds | {f"{a}/{b}": round(speeds[a] / speeds[b], 1) for a, b in pairs}


# --- other widths


def widths(rows: int, rounds: int) -> dict[str, dict[str, float]]:
    figures = {}
    for dim in DIMS:
        store, keys, grown = growth(rows, dim)
        turn = Turn(keys, 1, BATCH)
        gradients, out = np.ones((BATCH, dim), np.float32), np.empty((BATCH, dim), np.float32)
        work = {
            "turn": turn.next,
            "look_up": lambda store=store, out=out, turn=turn: store.pull(turn.keys, out),
            "turn2": turn.next,
            "update": lambda store=store, some=gradients, turn=turn: store.push(turn.keys, some),
        }
        speeds = medians(work, rounds, BATCH)
        figures[str(dim)] = {
            "look_up": speeds["look_up"],
            "update": speeds["update"],
            "insert": grown["insert"],
            "bytes_a_row": grown["bytes_a_row"],
            "payload_bytes": 8 + 4 * dim + 4,
        }
        print(dim, json.dumps(figures[str(dim)]), flush=True)
    return figures


def draw(figures: dict[str, dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in ("look_up", "update", "insert"):
        axes.plot([int(dim) for dim in figures], [some[name] for some in figures.values()], "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="floats a row", ylabel="million rows a second, one core")
    axes.set_xticks([int(dim) for dim in figures], list(figures))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="a million rows, few rounds: under a minute")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--chart", type=Path, help="measure other widths too and draw them there (PNG)")
    chosen = parser.parse_args()
    rounds = 8 if chosen.quick else chosen.rounds
    figures: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "vector_levels": vector_levels(),
        "python": platform.python_version(),
        "unit": "million keys a second; medians of processor time",
    }
    for rows in [1_000_000] if chosen.quick else chosen.rows:
        figures[f"rows_{rows}"] = measure(rows, rounds, peers=True)
        print(rows, json.dumps(figures[f"rows_{rows}"]), flush=True)
    figures["helpers"] = helpers(rounds)  # after growth, whose peak of memory is the process's
    print(json.dumps(figures["helpers"]), flush=True)
    if chosen.chart is not None:
        figures["widths"] = widths(200_000 if chosen.quick else 5_000_000, rounds)
        draw(figures["widths"], chosen.chart)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
