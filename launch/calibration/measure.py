"""Costs of this machine, measured in a trainer of a real cluster: ``measure.py SETTINGS``.

The trainer has the threads, allocator and processor of training.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from cython_ext.model.products import has_bfloat16
from pslib.batch import Batch
from pslib.client.client import Client
from pslib.client.pending import PendingPull, PendingPush
from pslib.cluster import connect
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.planner.coefficients import TableCost, row_cost
from pslib.planner.demand import HEADER_BYTES
from pslib.planner.workload import KEY_BYTES, Workload
from pslib.process.platform import private_bytes
from pslib.schema import Schema
from pslib.shard.stores import make_store
from pslib.table.optimizers import Adam, RowwiseAdagrad
from pslib.table.policies import STORAGES
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.trainer.pipeline.compute import ModelThreads
from pslib.trainer.pipeline.dense import DenseLayout
from rec_models import DeepFM

TICK_S = 0.01
"""Resolution of the processor time of another process on Linux."""

LEAST = 5
"""Minimum number of calls, independent of their duration."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one call: median wall time; mean processor time of this process and of another one."""

    wall_s: float
    own_s: float
    other_s: float


def repeat(work: Callable[[], object], seconds: float, other: Callable[[], float] | None = None) -> Spent:
    """Call ``work`` for about ``seconds`` and at least five times, after one unmeasured call.

    Parameters
    ----------
    work : callable
    seconds : float
    other : callable, optional
        Returns the processor seconds of another process so far.
    """
    work()
    walls: list[float] = []
    start, own = time.perf_counter(), time.process_time()
    others = other() if other else 0.0
    last = start
    while len(walls) < LEAST or last - start < seconds:
        work()
        now = time.perf_counter()
        walls.append(now - last)
        last = now
    count = len(walls)
    spent_elsewhere = max(TICK_S / 2, (other() if other else 0.0) - others)
    return Spent(sorted(walls)[count // 2], (time.process_time() - own) / count, spent_elsewhere / count)


Floats = NDArray[np.float64]


def fit_costs(amounts: Floats, totals: Floats) -> Floats:
    """Fit costs ``c >= 0`` so that ``amounts @ c`` approximates ``totals`` in relative error.

    All subsets of columns are tried; the best one without a negative cost is taken. This is exact, and cheap
    for a handful of columns.

    Parameters
    ----------
    amounts : (n, k) float64
        Amount of each kind of work in each measurement; k up to about 8.
    totals : (n,) float64
        Measured totals, above 0.

    Returns
    -------
    (k,) float64
        Cost of each kind; 0 for kinds that the measurements do not show.
    """
    scaled = amounts / totals[:, None]
    best, best_error = np.zeros(amounts.shape[1]), np.inf
    kinds = range(amounts.shape[1])
    for size in range(1, amounts.shape[1] + 1):
        for chosen in map(list, combinations(kinds, size)):
            costs = np.linalg.lstsq(scaled[:, chosen], np.ones(len(totals)), rcond=None)[0]
            error = float(np.square(scaled[:, chosen] @ costs - 1).sum())
            if costs.min() >= 0 and error < best_error - 1e-12:
                best, best_error = np.zeros(amounts.shape[1]), error
                best[chosen] = costs
    return best


PARTITION_BITS = 8
BATCH = 65_536
REPEATS = 12
ROW_DIMS = (4, 16, 64)


def measure_rows(rows: int) -> tuple[list[TableCost], dict[str, float]]:
    """Measure costs of rows of each storage and width, and fit memory of a row to its payload.

    Parameters
    ----------
    rows : int
        Rows of each table; enough to exceed the processor caches.
    """
    costs, payloads, taken = [], [], []
    for storage in STORAGES:
        for dim in ROW_DIMS:
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


SHAPES = (
    (512, 16, (64,)),
    (4096, 16, (64,)),
    (4096, 4, (16,)),
    (1024, 32, (128, 128)),
    (512, 16, (400, 400)),
    (2048, 16, (400, 400, 400)),
    (4096, 8, (400, 200)),
)
"""Batch, dim, hidden units: products and memory-bound work in different shares."""


def measure_reading(folder: Path, schema: Schema, batch_rows: int) -> dict[str, float]:
    """Measure the time per value of an example: decoding, hashing, deduplication."""
    data = ParquetData(str(folder / "train.parquet"), schema)
    order = Order(0, [group.rows for group in data.row_groups], default_lease_rows(data.rows, batch_rows))
    reader = LeaseReader(data, schema, order, batch_rows)
    examples = 0
    wall, own = time.perf_counter(), time.process_time()
    for index in range(order.leases(0)):
        for batch in reader.batches(0, index):
            examples += len(batch)
    own_s, wall_s = time.process_time() - own, time.perf_counter() - wall
    reader.close()
    values = examples * (len(schema.sparse) + len(schema.dense))
    return {"read_value_us": own_s / values * 1e6, "read_width": max(1.0, own_s / wall_s)}


def workload_of(schema: Schema, batch_rows: int, dim: int, hidden: tuple[int, ...], **more: Any) -> Workload:
    """Return the planner workload of a DeepFM on this schema."""
    table = TableSpec(
        "embedding", DeepFM(schema, dim=dim, hidden=hidden, v_optimizer=RowwiseAdagrad()).parts()
    )
    return Workload(
        rows=more.pop("rows", 1),
        table=table,
        keys=len(schema.sparse),
        dense_fields=len(schema.dense),
        hidden=hidden,
        batch_rows=batch_rows,
        **more,
    )


def measure_steps(schema: Schema, seconds: float, products: str = "float32") -> dict[str, float]:
    """Measure costs of a step, a key, a multiply-add and a float of memory traffic.

    Microseconds; for multiply-adds and floats, per million. ``products`` as in `Trainer`.
    """
    amounts, spents = [], []
    for batch_rows, dim, hidden in SHAPES:
        work = workload_of(schema, batch_rows, dim, hidden)
        spent = _step(schema, batch_rows, dim, hidden, seconds, products)
        millions = batch_rows / 1e6
        keys = batch_rows * work.keys
        amounts.append((1.0, keys, work.multiply_adds * millions, work.touched_floats * millions))
        spents.append((spent.own_s * 1e6, spent.wall_s * 1e6))
    totals = np.array(spents)
    step, key, product, memory = fit_costs(np.array(amounts), totals[:, 0])
    shared = np.maximum(totals - step, 1.0)  # by processors and by the clock, without the serial part
    width = float(np.median(shared[:, 0] / shared[:, 1]))
    return {
        "step_us": float(step),
        "key_us": float(key),
        "multiply_add_us": float(product),
        "float_us": float(memory),
        "compute_width": max(1.0, width),
    }


def _step(
    schema: Schema, batch_rows: int, dim: int, hidden: tuple[int, ...], seconds: float, products: str
) -> Spent:
    """Compute one step on given rows with the threads of a trainer: `Computer` without its push."""
    rng = np.random.default_rng(0)
    model = DeepFM(schema, dim=dim, hidden=hidden, v_optimizer=RowwiseAdagrad())
    fields, distinct = len(schema.sparse), batch_rows * len(schema.sparse) // 2
    batch = Batch(
        labels=(rng.random(batch_rows) < 0.25).astype(np.float32),
        dense=rng.random((batch_rows, len(schema.dense)), np.float32),
        keys=np.arange(distinct, dtype=np.uint64),
        sparse=rng.integers(0, distinct, (batch_rows, fields)).astype(np.int32),
        ragged={},
    )
    layout = DenseLayout(model.dense_shapes())
    rows = rng.standard_normal((distinct, dim + 1), np.float32) * np.float32(0.01)
    dense = layout.flatten(model.initial_dense(0))
    with ModelThreads(model, None, products=products) as threads:

        def work() -> object:
            step = threads.step(batch, rows, layout.views(dense), 0)
            return np.ascontiguousarray(step.rows_gradient, np.float32), layout.flatten(step.dense_gradients)

        return repeat(work, seconds)


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

    return seconds, lambda: private_bytes(server)


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


def measure_all(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure everything except whole runs."""
    folder, seconds = Path(settings["folder"]), settings["seconds"]
    schema = Schema.from_dict(settings["schema"])
    costs, found = measure_rows(settings["table_rows"])
    with connect() as cluster:
        client = cluster.client
        _, server_bytes = server_cpu()
        found["server_process_bytes"] = float(server_bytes())
        found["trainer_process_bytes"] = float(private_bytes(psutil.Process()))
        set_up(client, settings["wire_rows"])
        found |= measure_wire(client, settings["wire_rows"], costs, seconds)
        found["checkpoint_mb_s"] = measure_checkpoint(client, str(folder / "checkpoint"))
        found["few_keys_server_us"] = few_keys(client, 2 * seconds).other_s * 1e6
        found["loopback_mb_s"] = loopback_mb_s()
        found |= measure_reading(folder, schema, settings["batch_rows"])
        found |= measure_steps(schema, 2 * seconds, settings["products"])
    rounds = settings["products"] == "bfloat16" and has_bfloat16()
    return found | {
        "products": "bfloat16" if rounds else "float32",
        "tables": [
            {name: getattr(cost, name) for name in ("storage", "floats", "pull_us", "push_us", "insert_us")}
            for cost in costs
        ],
    }


def measure_threads(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure a small request to a server with more threads."""
    with connect() as cluster:
        set_up(cluster.client, 1_000)
        return {"few_keys_server_us": few_keys(cluster.client, 2 * settings["seconds"]).other_s * 1e6}


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    measured = (measure_all if given["part"] == "all" else measure_threads)(given)
    Path(given["out"]).write_text(json.dumps(measured), encoding="utf-8")
