"""Measure million keys a second that one Store inserts, pulls and pushes, on one core.

Keys are random and distinct within a call of 65,536, rows are dim 16 with row-wise Adagrad (80 bytes each),
4,096 partitions. Prints one JSON line a size::

    python benchmarks/store_quick.py 1000000 10000000
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cython_ext.table.store import Store
from pslib.table.optimizers import RowwiseAdagrad

DIM = 16
BATCH = 65_536
REPEATS = 24
PARTITION_BITS = 12


def make_store() -> Store:
    optimizer = RowwiseAdagrad(learning_rate=0.05)
    uniform = np.asarray([0.01, 0.0], np.float32)
    part = (
        DIM,
        optimizer.kind,
        optimizer.hyperparameters(),
        optimizer.modifiers(),
        optimizer.corrections(),
        1,
        uniform,
        7,
        optimizer.initial_state(DIM),
    )
    return Store(PARTITION_BITS, [part])


def million_a_second(
    work: Callable[[NDArray[np.uint64]], object], batches: list[NDArray[np.uint64]]
) -> float:
    """Median over the batches, so that a neighbour on the machine does not count."""
    seconds = []
    for keys in batches:
        start = time.perf_counter()
        work(keys)
        seconds.append((time.perf_counter() - start) / len(keys))
    return round(1e-6 / float(np.median(seconds)), 2)


def measure(rows: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    store = make_store()
    keys = rng.integers(0, 1 << 64, rows, np.uint64)
    gradients = rng.standard_normal((BATCH, DIM)).astype(np.float32)
    out = np.empty((BATCH, DIM), np.float32)
    inserts = [keys[at : at + BATCH] for at in range(0, rows, BATCH)]
    figures = {
        "rows": float(rows),
        "insert": million_a_second(lambda some: store.push(some, gradients[: len(some)]), inserts),
    }
    known = [rng.choice(keys, BATCH, replace=False, shuffle=False) for _ in range(REPEATS)]
    absent = [rng.integers(0, 1 << 64, BATCH, np.uint64) for _ in range(REPEATS)]
    stats = store.stats()
    figures["pull"] = million_a_second(lambda some: store.pull(some, out), known)
    figures["push"] = million_a_second(lambda some: store.push(some, gradients), known)
    figures["pull_absent"] = million_a_second(lambda some: store.pull(some, out), absent)
    figures["erase"] = million_a_second(store.erase, inserts[:REPEATS])
    figures["index_bytes_a_row"] = round(stats["index_bytes"] / stats["rows"], 2)
    figures["row_bytes_a_row"] = round(stats["row_bytes"] / stats["rows"], 2)
    return figures


if __name__ == "__main__":
    for size in sys.argv[1:] or ["1000000", "10000000"]:
        print(json.dumps(measure(int(size))), flush=True)
