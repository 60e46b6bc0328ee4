"""Readers of leases for tests, and a schema of every kind of field."""

from __future__ import annotations

from pathlib import Path

from pslib.batch import Batch
from pslib.data.dataset import ParquetData
from pslib.data.order import Order
from pslib.data.reader import LeaseReader
from pslib.schema import DenseField, RaggedField, Schema, SparseField

SCHEMA = Schema(
    label="click",
    dense=[DenseField("price", fill=-1.0), DenseField("count", fill=3.0, log1p=True)],
    sparse=[SparseField("user"), SparseField("item", vocabulary="things")],
    ragged=[RaggedField("seen", vocabulary="things"), RaggedField("words")],
)


def reader_of(folder: Path, batch_rows: int, schema: Schema = SCHEMA, **order: object) -> LeaseReader:
    data = ParquetData(folder, schema)
    options = {"seed": 3, "lease_rows": 4 * batch_rows, "shuffle": False, **order}
    counts = [group.rows for group in data.row_groups]
    return LeaseReader(data, schema, Order(row_counts=counts, **options), batch_rows)  # type: ignore[arg-type]


def bits(batch: Batch) -> list[bytes]:
    arrays = [batch.labels, batch.dense, batch.keys, batch.sparse]
    arrays += [array for ragged in batch.ragged.values() for array in (ragged.values, ragged.offsets)]
    return [array.tobytes() for array in arrays]
