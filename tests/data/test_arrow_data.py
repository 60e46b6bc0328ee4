"""Tables of other libraries: data sets are known by their methods, and iterators of tables are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pslib import RaggedField, Schema
from pslib.data.arrow_data import KnownTypes, lasting, open_data, table_of
from pslib.data.column_types import KeyKinds
from pslib.errors import ConfigurationError, DataError
from pslib.trainer.retrieval.towers import whole_batches

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


def test_known_types_read_tables_as_tables_that_are_checked_anew() -> None:
    """Also where types alternate, are wrong, or more than are remembered."""
    schema = Schema(label=None, sparse=["u"], dense=["x"], ragged=[RaggedField("tags", separator="|")])
    kinds: KeyKinds = {"u": ("integer", "u", "before"), "tags": ("string", "tags", "before")}
    known = KnownTypes(schema, kinds)
    numbers = (
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
    )
    ids: list[Any] = [pa.array([7, None], kind) for kind in numbers]
    ids.append(ids[0].dictionary_encode())
    tags = [
        pa.array([["a", None], None]),
        pa.array(["a|b", None]),
        pa.array(["a|b", None]).dictionary_encode(),
    ]
    assert len(ids) > KnownTypes.MOST
    for _ in range(2):
        for place, one in enumerate(ids):
            lists = tags[place % len(tags)]
            table = pa.table({"more": [1, 2], "tags": lists, "u": one, "x": [0.5, None]})
            found, anew = (
                next(whole_batches(open_data(table, schema, key_kinds=dict(kinds), known=types), 9))
                for types in (known, None)
            )
            for name in ("keys", "sparse", "dense"):
                np.testing.assert_array_equal(getattr(found, name), getattr(anew, name))
            np.testing.assert_array_equal(found.ragged["tags"].values, anew.ragged["tags"].values)
        with pytest.raises(DataError, match="data: column 'x': a dense column is integer, float or boolean"):
            open_data(pa.table({"tags": tags[0], "u": [1, 2], "x": ["a", "b"]}), schema, known=known)
    assert len(known._known) == KnownTypes.MOST
