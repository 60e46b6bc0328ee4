"""The table beside the memory it lives in, and beside what people would use instead; one core.

``python benchmarks/table.py [--rows N ...] [--storage TYPE] [--only growth|widths] [--quick] [--warm]
[--rounds R] [--json FILE] [--chart FILE]``

Contenders take turns, batch by batch, in another random order every round (the one after an update pays for
writing its lines back), and each figure is a median over their batches in processor time of the thread, so
that a neighbour on the machine hits all of them alike or not at all. Compare ratios: absolute figures belong
to the machine. Peers that are not there (a C++ compiler with absl, torch, fbgemm-gpu-cpu) are left out.

``--storage`` says how rows are stored (float32 unless it is given, bfloat16, float16, int8); peers, which
have float32, are told beside float32 alone. ``--only growth`` inserts the rows and tells memory and rates of
that. ``--only widths`` (and ``--chart``, beside all else) takes 5 million rows (``--rows``) of 1 to 128
numbers of each storage type (or of the one given), each beside the bare gather of 64-byte lines and a gather
of rows of as many bytes (the same lines; not for rows of under 4 bytes).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from table_peers import (
    DIM,
    Contenders,
    Turn,
    absl_peer,
    at,
    compiled,
    fbgemm_peer,
    n_of,
    seconds,
    torch_peer,
)

from cython_ext.data.distinct import distinct
from cython_ext.model.row_places import pool_rows, pool_rows_gradient
from cython_ext.table.store import Store, vector_levels
from pslib.shard.stores import make_store
from pslib.table.initializers import Uniform
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import PartSpec, TableSpec

BATCH = 106_496  # 4,096 examples of 26 fields
SMALL_BATCH = 4_096
LINE = 64
SECOND = "_second_cache"
HUGE_PAGE = 2 << 20
PARTITION_BITS = 12
DIMS = (1, 4, 8, 16, 32, 64, 128)
NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]
Places = NDArray[np.int64]


def limits_library() -> ctypes.CDLL:
    library = compiled("table_limits.c")
    if library is None:
        raise SystemExit("benchmarks/table.py: expected gcc, which compiles the limits of memory; install it")
    library.lines_make.restype = ctypes.c_void_p
    for name in ("gather_bare", "gather_copy", "gather_update"):
        getattr(library, name).restype = ctypes.c_float
    return library


def store_of(dim: int, storage: str) -> Store:
    part = PartSpec("v", dim, RowwiseAdagrad(learning_rate=0.05), Uniform(0.01))
    return make_store(TableSpec("t", (part,), storage=storage), PARTITION_BITS)


def medians(contenders: Contenders, rounds: int, keys_a_call: int) -> dict[str, float]:
    """Million keys a second of each; they take turns."""
    rng = np.random.default_rng(6)
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in rng.permutation(list(contenders)):
            prepare, call = contenders[name]
            prepare()
            spent[name].append(seconds(call))
    return {name: round(1e-6 * keys_a_call / float(np.median(some)), 2) for name, some in spent.items()}


def at_once(work: dict[str, Callable[[], object]]) -> Contenders:
    """Contenders that need no keys of their own."""
    return {name: (lambda: None, call) for name, call in work.items()}


def warm_memory(bytes_: int) -> None:
    """Have the host of a virtual machine give it the memory that will be needed.

    It takes a page from its host when it touches it first, which can cost ten times what the kernel does
    with the page, and is no matter of the table. Where the host takes free pages back, single pages can take
    longer still for some seconds afterwards: the slowest batch is worth nothing then.
    """
    size = min(bytes_, resource_bytes_free() * 3 // 4)
    work = f"import numpy; numpy.ones({size // 8})"
    subprocess.run([sys.executable, "-c", work], check=True)


def first_touches(bytes_: int) -> list[float]:
    """Seconds of the first touch of each huge page of so much new memory, of nothing else."""
    size = min(bytes_, resource_bytes_free() * 3 // 4)
    spent = []
    with mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for place in range(HUGE_PAGE, size, HUGE_PAGE):
            began = time.thread_time()
            memory[place] = 1
            spent.append(time.thread_time() - began)
    return spent


def resource_bytes_free() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * resource.getpagesize()


def resident_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# --- growth: before anything else in the process takes memory


def growth(rows: int, dim: int, storage: str = "float32") -> tuple[Store, Keys, dict[str, float]]:
    """Insert all keys in batches of 4,096; memory and the slowest batch on the way."""
    keys = np.random.default_rng(0).integers(0, 1 << 64, rows, np.uint64)
    gradients = np.random.default_rng(1).standard_normal((SMALL_BATCH, dim)).astype(np.float32)
    store = store_of(dim, storage)
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


@contextmanager
def gathers(turn: Turn, rows: int, row_bytes: int, out: Floats) -> Iterator[Contenders]:
    """The limits, while their memory is held: one line a key, and what rows of so many bytes touch.

    Each twice: lines are asked for into the first cache of the core, or into the second.
    """
    library, many, size = limits_library(), n_of(turn.batch), n_of(row_bytes)
    sizes = {"bare": rows, "index": turn.index_lines, "rows": rows * row_bytes // LINE + 1}
    sizes |= {"state": rows // 16 + 1}
    if row_bytes == LINE:
        sizes["rows"] = 0  # the lines of the bare one are its rows
    if row_bytes < 4:  # the C programs take whole floats
        sizes = {"bare": rows}
    held = {name: library.lines_make(n_of(count)) for name, count in sizes.items() if count}
    at_line = {name: ctypes.c_void_p(place) for name, place in held.items()}
    lines = at_line.get("rows", at_line["bare"])

    def bare(second: int) -> None:
        library.gather_bare(at_line["bare"], at(turn.numbers), many, second)

    def look_up(second: int) -> None:
        places = at_line["index"], at(turn.index_places), lines, at(turn.numbers)
        library.gather_copy(*places, many, at(out), size, second)

    def update(second: int) -> None:
        places = at_line["index"], at(turn.index_places), lines, at(turn.numbers)
        library.gather_update(*places, at_line["state"], many, at(out), size, second)

    work = {"bare": bare} | (
        {"same_lines_look_up": look_up, "same_lines_update": update} if row_bytes >= 4 else {}
    )
    contenders: Contenders = {
        name + suffix: (turn.next, partial(call, second))
        for name, call in work.items()
        for second, suffix in enumerate(("", SECOND))
    }
    try:
        yield contenders
    finally:
        for name, place in at_line.items():
            library.lines_free(place, n_of(sizes[name]))


def table_contenders(store: Store, turn: Turn, gradients: Floats, out: Floats) -> Contenders:
    """Six, so that as many read the table in a round as read the lines of the limits.

    Else a last-level cache of hundreds of MB would hold more of these.
    """
    look_up = (turn.next, lambda: store.pull(turn.keys, out))
    update = (turn.next, lambda: store.push(turn.keys, gradients))
    return {
        name + again: contender
        for name, contender in (("look_up", look_up), ("update", update))
        for again in ("", "_again", "_once_more")
    }


def grown(rows: int, dim: int, storage: str) -> tuple[Store, Keys, dict[str, float]]:
    """Run `growth`, and also time the first touches of as much memory."""
    store, keys, figures = growth(rows, dim, storage)
    touches = np.asarray(first_touches(int(figures["resident_bytes_a_row"] * rows)))
    batch = 1e-6 * SMALL_BATCH / figures["insert"]
    figures["worst_first_touch_against_median"] = round(float(touches.max()) / batch, 1)
    figures["first_touches_ms"] = round(1e3 * float(touches.mean()), 2)
    return store, keys, figures


def measure(rows: int, rounds: int, warm: bool, storage: str, growth_alone: bool) -> dict[str, float]:
    if warm:
        warm_memory(rows * 115)
    store, keys, figures = grown(rows, DIM, storage)
    print(json.dumps(figures), flush=True)
    if growth_alone:
        return figures
    speeds = speeds_of(store, keys, rounds, DIM, storage, peers=storage == "float32")
    return figures | speeds | ratios(speeds)


def speeds_of(store: Store, keys: Keys, rounds: int, dim: int, storage: str, peers: bool) -> dict[str, float]:
    """Look-up and update beside the limits, and beside peers."""
    gradients = np.random.default_rng(3).standard_normal((BATCH, dim)).astype(np.float32)
    out = np.empty((BATCH, dim), np.float32)
    turn = Turn(keys, store.stats()["index_bytes"] // LINE, BATCH)
    with gathers(turn, len(keys), dim * NUMBER_BYTES[storage], out) as limits:
        contenders = limits | table_contenders(store, turn, gradients, out)
        if peers:
            contenders |= absl_peer(turn, gradients, out) | torch_peer(turn, gradients)
            contenders |= fbgemm_peer(turn, gradients)
        return medians(contenders, rounds, BATCH)


def ratios(speeds: dict[str, float]) -> dict[str, float]:
    pairs = [("look_up", "bare"), ("look_up", "same_lines_look_up"), ("update", "bare")]
    pairs += [("update", "same_lines_update"), ("look_up", "absl_look_up"), ("update", "absl_update")]
    pairs += [("look_up", "torch_embedding_bag_look_up"), ("update", "torch_sparse_adagrad_update")]
    pairs += [("look_up", "fbgemm_look_up"), ("update", "fbgemm_update")]
    pairs += [(a, b + SECOND) for a, b in pairs[:4]]
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
        at_once(
            {
                "distinct": lambda: distinct(keys),
                "numpy_unique": lambda: np.unique(keys, return_inverse=True),
                "pool": lambda: pool_rows(rows, places, offsets, False),
                "numpy_take_reduceat": lambda: np.add.reduceat(
                    rows.take(places, axis=0), offsets[:-1], axis=0
                ),
                "pool_gradient": lambda: pool_rows_gradient(gradients, places, offsets, len(found), False),
                "numpy_add_at": add_at,
            }
        ),
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


def width(rows: int, rounds: int, dim: int, storage: str) -> dict[str, float]:
    """Rates of one width, and their ratios to the limits."""
    store, keys, figures = growth(rows, dim, storage)
    speeds = speeds_of(store, keys, rounds, dim, storage, peers=False)
    speeds |= ratios(speeds) | {name: figures[name] for name in ("insert", "bytes_a_row")}
    print(dim, storage, json.dumps(speeds), flush=True)
    return speeds


def widths(rows: int, rounds: int, storages: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """By storage type and width."""
    warm_memory(rows * 700)
    return {storage: {str(dim): width(rows, rounds, dim, storage) for dim in DIMS} for storage in storages}


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
    parser.add_argument("--rows", type=int, nargs="+", help="default: 10 million; of widths 5")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--storage", choices=list(NUMBER_BYTES), help="how rows are stored")
    parser.add_argument("--only", choices=["growth", "widths"], help="one part alone")
    parser.add_argument("--quick", action="store_true", help="a million rows, few rounds: under a minute")
    parser.add_argument("--warm", action="store_true", help="rows come into memory that was in use before")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--chart", type=Path, help="measure other widths too and draw them there (PNG)")
    chosen = parser.parse_args()
    rounds, storage = 8 if chosen.quick else chosen.rounds, chosen.storage or "float32"
    figures: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "vector_levels": vector_levels(),
        "python": platform.python_version(),
        "storage": storage,
        "unit": "million keys a second; medians of processor time",
    }
    for rows in [1_000_000] if chosen.quick else chosen.rows or [10_000_000]:
        if chosen.only != "widths":
            how = chosen.warm, storage, chosen.only == "growth"
            figures[f"rows_{rows}"] = measure(rows, rounds, *how)
            print(rows, storage, json.dumps(figures[f"rows_{rows}"]), flush=True)
    if chosen.only is None:
        figures["helpers"] = helpers(rounds)  # after growth, whose peak of memory is the process's
        print(json.dumps(figures["helpers"]), flush=True)
    if chosen.only == "widths" or (chosen.chart is not None and chosen.only is None):
        asked = chosen.rows if chosen.rows and chosen.only else [5_000_000]
        storages = [chosen.storage] if chosen.storage and chosen.only else list(NUMBER_BYTES)
        figures["widths"] = widths(200_000 if chosen.quick else asked[0], rounds, storages)
        if chosen.chart is not None:
            draw(figures["widths"][storages[0]], chosen.chart)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
