"""The cost of reading depends neither on the size of row groups nor on the number of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pslib.data import LeaseReader, Order, ParquetData, default_lease_rows
from pslib.data.inspect.check import check
from pslib.schema import Schema

SCHEMA = Schema(label="y", dense=["x"], sparse=["a", "b"], ragged=["seen"])
MIB = 1 << 20


def numbers(rows: int, seed: int = 0) -> pa.Table:
    """Numbers that no codec makes smaller."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, 1 << 62, rows) for name in ("a", "b")}
    lists = pa.ListArray.from_arrays(
        np.arange(0, 2 * rows + 1, 2, np.int32), rng.integers(0, 1 << 62, 2 * rows)
    )
    return pa.table(
        {"y": rng.integers(0, 2, rows).astype(np.int8), "x": rng.random(rows), **columns, "seen": lists}
    )


@contextmanager
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """A pool that counts what Arrow takes meanwhile."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def reader_of(data: ParquetData, window_rows: int) -> tuple[LeaseReader, Order]:
    lease_rows = min(default_lease_rows(data.rows, 1000), window_rows)
    order = Order(3, [group.rows for group in data.row_groups], lease_rows, window_rows)
    return LeaseReader(data, SCHEMA, order, 1000), order


def peak(path: Path, rows: int) -> int:
    """Bytes that Arrow takes at most while all of a file is read, which is one row group."""
    pq.write_table(numbers(rows), path, row_group_size=rows, compression=None, use_dictionary=False)
    data = ParquetData(path, SCHEMA)
    reader, order = reader_of(data, 50_000)
    with arrow_memory() as pool:
        read = sum(len(batch) for lease in range(order.leases(0)) for batch in reader.batches(0, lease))
        reader.close()
        assert read == rows
        return int(pool.max_memory())


def test_memory_is_bounded_whatever_the_size_of_a_row_group(tmp_path: Path) -> None:
    """8 and 25 MB in one row group: the peak is that of 65,536 rows and of a megabyte a column."""
    small, large = (peak(tmp_path / f"{rows}.parquet", rows) for rows in (200_000, 600_000))
    assert large < 1.2 * small
    assert large < 12 * MIB  # 9.0 on 2026-11-21, either way


def test_a_look_at_the_data_is_bounded_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(numbers(200_000), path, row_group_size=200_000, compression=None, use_dictionary=False)
    with arrow_memory() as pool:
        assert check(path, SCHEMA).ok
        assert pool.max_memory() < 6 * MIB  # 4.3 on 2026-11-21, of 8 in the file


def test_many_files_of_few_rows_are_open_one_at_a_time_and_each_row_is_read_once(tmp_path: Path) -> None:
    table = numbers(900)
    for i in range(300):
        pq.write_table(table.slice(3 * i, 3), tmp_path / f"{i:03}.parquet")
    data = ParquetData(tmp_path, SCHEMA)
    before = len(os.listdir("/proc/self/fd"))
    reader, order = reader_of(data, 1 << 18)
    assert len(order.windows(0)) == 1  # shuffled together, whatever file they are from
    batches, most = [], 0
    for lease in range(order.leases(0)):
        for batch in reader.batches(0, lease):
            batches.append(batch)
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
    reader.close()
    assert most <= 2
    assert sum(len(batch) for batch in batches) == 900
    dense = np.sort(np.concatenate([batch.dense[:, 0] for batch in batches]))
    np.testing.assert_array_equal(dense, np.sort(table["x"].to_numpy().astype(np.float32)))
