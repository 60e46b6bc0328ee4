"""Tables of other libraries: data sets are known by their methods, and iterators of tables are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from pslib import Schema
from pslib.data.arrow_data import lasting, open_data, table_of
from pslib.errors import ConfigurationError, DataError

TABLE = pa.table({"y": [0, 1, 1], "u": ["a", "b", None]})


class DataSet:
    """Stand-in for `datasets.Dataset` 5.2: a slice of it is a table of its format."""

    def with_format(self, name: str) -> DataSet:
        assert name == "arrow"
        return self

    def __len__(self) -> int:
        return TABLE.num_rows

    def __getitem__(self, rows: slice) -> pa.Table:
        return TABLE[rows]


class IterableDataSet:
    """Stand-in for `datasets.IterableDataset` 5.2: its items are columns, and its batches tables."""

    def with_format(self, name: str) -> IterableDataSet:
        assert name == "arrow"
        return self

    def __getitem__(self, name: str) -> Any:
        raise AssertionError("a column has no rows")

    def iter(self, batch_size: int) -> Iterator[pa.Table]:
        for start in range(0, TABLE.num_rows, min(2, batch_size)):
            yield TABLE.slice(start, 2)


class DataSets(dict[str, DataSet]):
    """Stand-in for `datasets.DatasetDict` 5.2."""

    def with_format(self, name: str) -> Mapping[str, DataSet]:
        raise AssertionError("these are several")


@pytest.mark.parametrize("data", [DataSet(), IterableDataSet()], ids=["at hand", "iterable"])
def test_a_data_set_of_hugging_face_is_a_table(data: Any) -> None:
    assert table_of(data).equals(TABLE)


def test_several_data_sets_are_named() -> None:
    with pytest.raises(ConfigurationError, match="expected one data set, got train, test: give one of them"):
        table_of(DataSets(train=DataSet(), test=DataSet()))


def test_an_iterator_is_read_once_and_may_be_opened_again() -> None:
    for data in (iter(TABLE.to_batches(1)), TABLE.to_reader(1), (TABLE.slice(i, 1) for i in range(3))):
        kept = lasting(data)
        assert table_of(kept).equals(table_of(kept))
        assert table_of(kept).equals(TABLE)
    assert lasting(TABLE) is TABLE


def test_a_reader_without_batches_is_a_table_without_rows() -> None:
    with pytest.raises(DataError, match="data: expected at least one row, got none"):
        open_data(TABLE.slice(0, 0).to_reader(), Schema(label="y", sparse=["u"]))
