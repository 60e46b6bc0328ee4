"""Files of many columns, and names that could mean two of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data import LeaseReader, Order, ParquetData
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.errors import DataError
from pslib.schema import Schema

COLUMNS = 60


@pytest.fixture
def times_asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Each time that a file is asked for its schema, which Arrow makes anew of all columns."""
    asked: list[object] = []
    plain = pq.ParquetFile.schema_arrow.fget

    def counted(self: pq.ParquetFile) -> pa.Schema:
        asked.append(self)
        return plain(self)

    monkeypatch.setattr(pq.ParquetFile, "schema_arrow", property(counted))
    return asked


def test_work_grows_with_the_number_of_columns_and_not_with_its_square(
    tmp_path: Path, times_asked: list[object]
) -> None:
    names = [f"c{i}" for i in range(COLUMNS)]
    columns = {name: ["a", "b", "a"] for name in names}
    pq.write_table(pa.table({"y": [0, 1, 1], **columns}), tmp_path / "a.parquet")
    schema = Schema(label="y", sparse=names)
    data = ParquetData(tmp_path, schema)
    reader = LeaseReader(data, schema, Order(0, [3], 3), 3)
    assert sum(map(len, reader.batches(0, 0))) == 3
    assert check(tmp_path, schema).problems == ()
    assert len(times_asked) < 10


def test_a_description_reads_each_footer_and_each_page_once(
    tmp_path: Path, times_asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {f"c{i}": [i % 7, 1, 2] * 40 for i in range(COLUMNS)}
    for name in "ab":
        pq.write_table(
            pa.table({"y": [0, 1, 1] * 40, **columns}), tmp_path / f"{name}.parquet", row_group_size=9
        )
    read: list[str] = []
    plain = pq.ParquetFile.iter_batches

    def noted(self: pq.ParquetFile, *args: Any, columns: list[str], **more: Any) -> Iterator[pa.RecordBatch]:
        assert more.get("row_groups") is None  # all of them
        read.extend(columns)
        return plain(self, *args, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    values: list[int] = []
    assert describe(tmp_path, "y", progress=values.append).report.rows == 240
    assert sum(values) == 240 * (COLUMNS + 1)
    assert sorted(read) == sorted(["y", *columns] * 2)
    assert len(times_asked) == 2


def test_a_column_named_like_the_inside_of_a_struct_is_itself(tmp_path: Path) -> None:
    """Arrow gives both for the name "a.b": the struct ``a`` with a ``b``, and the column."""
    inside = pa.array([{"b": "x"}] * 3)
    pq.write_table(pa.table({"a": inside, "a.b": [0, 1, 7], "c": [1, 2, 3]}), tmp_path / "a.parquet")
    schema = Schema(label="a.b", sparse=["c"])
    place = r"row 2 \(from 0\) in row group 0, column 'a\.b': a label is 0 or 1, got 7"
    with pytest.raises(DataError, match=place):
        ParquetData(tmp_path, schema)
    (found,) = check(tmp_path, schema).problems
    assert "column 'a.b': a label is 0 or 1, got 7" in found


def test_a_damaged_name_of_a_column_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [0, 1], "column": [1, 2]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"column", b"col\xe5mn"))
    schema = Schema(label="y", sparse=["column"])
    with pytest.raises(DataError, match=r"a\.parquet: expected a Parquet file; .*utf-8.*; write it anew"):
        ParquetData(tmp_path, schema)
    (found,) = check(tmp_path, schema).problems
    assert "a.parquet: expected a Parquet file" in found
