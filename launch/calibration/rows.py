"""Cost of a table's rows by storage and width: time of one thread, and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from launch.calibration.fit import fit_costs
from pslib.planner.coefficients import TableCost
from pslib.planner.workload import Workload
from pslib.shard.stores import make_store
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.policies import STORAGES
from pslib.table.tables import PartSpec, TableSpec

__all__ = ["measure_rows"]

PARTITION_BITS = 8
BATCH = 65_536
REPEATS = 12
DIMS = (4, 16, 64)


def measure_rows(rows: int) -> tuple[list[TableCost], dict[str, float]]:
    """Measure costs of rows of each storage and width, and fit memory of a row to its payload.

    Parameters
    ----------
    rows : int
        Rows of each table; enough to exceed the processor caches.
    """
    costs, payloads, taken = [], [], []
    for storage in STORAGES:
        for dim in DIMS:
            spec = TableSpec("rows", (PartSpec("v", dim, RowwiseAdagrad()),), storage=storage)
            cost, row_bytes = _measure(spec, rows)
            costs.append(cost)
            payloads.append(Workload(rows=1, table=spec).payload_bytes)
            taken.append(row_bytes)
    amounts = np.stack([np.ones(len(payloads)), np.array(payloads)], axis=1)
    overhead = fit_costs(amounts, np.array(taken))
    return costs, {"row_overhead_bytes": float(overhead[0]), "row_overhead_share": float(overhead[1]) - 1.0}


def _measure(spec: TableSpec, rows: int) -> tuple[TableCost, float]:
    """Measure median times of batches; look-up keys are spread over the whole table."""
    rng = np.random.default_rng(0)
    store, dim = make_store(spec, PARTITION_BITS), spec.parts[0].dim
    keys = rng.integers(0, 1 << 64, rows, np.uint64)
    gradients = rng.standard_normal((BATCH, dim), np.float32)
    out = np.empty((BATCH, dim), np.float32)
    inserted = [keys[at : at + BATCH] for at in range(0, rows - BATCH + 1, BATCH)]
    insert_us = _median_us(lambda some: store.push(some, gradients), inserted)
    pull_us = _median_us(lambda some: store.pull(some, out), _some(rng, keys))
    push_us = _median_us(lambda some: store.push(some, gradients), _some(rng, keys))
    stats = store.stats()
    taken = stats["resident_bytes"] / stats["rows"]
    return TableCost(spec.storage, dim, pull_us, push_us, insert_us), taken


def _some(rng: np.random.Generator, keys: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    for _ in range(REPEATS):
        yield rng.choice(keys, min(BATCH, keys.size), replace=False, shuffle=False)


def _median_us(work: Callable[[NDArray[np.uint64]], object], batches: object) -> float:
    took = []
    for some in batches:  # type: ignore[attr-defined]
        start = time.thread_time()
        work(some)
        took.append((time.thread_time() - start) / len(some))
    return float(np.median(took)) * 1e6
