"""Cost of a trainer's own work: reading and keying examples, and steps of models of several shapes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from launch.calibration.fit import fit_costs
from launch.calibration.timing import Spent, repeat
from pslib.batch import Batch
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.planner.workload import Workload
from pslib.schema import Schema
from pslib.table.optimizers import RowwiseAdagrad
from pslib.table.tables import TableSpec
from pslib.trainer.pipeline.compute import ModelThreads
from pslib.trainer.pipeline.dense import DenseLayout
from rec_models import DeepFM

__all__ = ["SHAPES", "measure_reading", "measure_steps", "workload_of"]

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
