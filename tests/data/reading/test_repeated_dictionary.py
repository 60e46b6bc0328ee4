"""A Parquet dictionary that holds a value twice, as the format allows: it is one value, with one key."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data.columns import keys_of
from pslib.data.dataset import ParquetData
from pslib.data.inspect.check import check
from pslib.data.item_catalog import catalogue_of
from pslib.data.order import Order
from pslib.data.reader import LeaseReader
from pslib.schema import RaggedField, Schema, SparseField

NAMES = ["first", "again", "other"]
"""Names of equal length: the file is made by writing the first one over the second."""
NUMBERS = [0x1111111111, 0x2222222222, 0x3333333333]
PLACES = [0, 1, 2, 1, 0, 0, 2, 1]
SCHEMA = Schema(
    label="label",
    sparse=[SparseField("name"), SparseField("number"), SparseField("both", of=("name", "number"))],
    ragged=[RaggedField("names"), RaggedField("numbers")],
)


@pytest.fixture(params=["1.0", "2.0"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    table = pa.table(
        {
            "label": [0, 1] * 4,
            "name": [NAMES[i] for i in PLACES],
            "number": [NUMBERS[i] for i in PLACES],
            "names": [[NAMES[i], NAMES[2]] for i in PLACES],
            "numbers": [[NUMBERS[i], NUMBERS[2]] for i in PLACES],
        }
    )
    out = io.BytesIO()
    options = {"compression": "none", "write_statistics": False, "data_page_version": request.param}
    pq.write_table(table, out, store_schema=False, **options)
    first, again = (i.to_bytes(8, "little") for i in NUMBERS[:2])
    data = out.getvalue()
    assert data.count(b"again") == data.count(again) == 2  # a flat column and one of lists of each kind
    file = tmp_path / "a.parquet"
    twice = data.replace(b"again", b"first").replace(again, first)
    file.write_bytes(twice)
    return file


def test_its_rows_have_the_key_of_the_value_and_a_batch_has_that_once(path: Path) -> None:
    data = ParquetData(path, SCHEMA)
    order = Order(0, [group.rows for group in data.row_groups], 8, shuffle=False)
    reader = LeaseReader(data, SCHEMA, order, 8)
    (batch,) = list(reader.batches(0, 0))
    reader.close()
    assert np.unique(batch.keys).size == batch.keys.size
    for column, array in enumerate((pa.array(NAMES), pa.array(NUMBERS))):
        field = SCHEMA.sparse[column]
        wanted = keys_of(array, field.salt)[[0 if i == 1 else i for i in PLACES]]
        assert batch.keys[batch.sparse[:, column]].tolist() == wanted.tolist()
    assert np.unique(batch.sparse[:, 2]).size == 2
    for field, array in zip(SCHEMA.ragged, (pa.array(NAMES), pa.array(NUMBERS)), strict=True):
        keys = keys_of(array, field.salt)
        pairs = batch.keys[batch.ragged[field.name].values].reshape(-1, 2)
        assert pairs.tolist() == [[keys[0 if i == 1 else i], keys[2]] for i in PLACES]


def test_describing_and_listing_count_it_once(path: Path) -> None:
    columns = {column.name: column.distinct for column in check(path).columns}
    assert [columns[name] for name in ("name", "number", "names", "numbers")] == [2] * 4
    for field in (*SCHEMA.sparse, *SCHEMA.ragged):
        assert catalogue_of(ParquetData(path, SCHEMA), field)[0].size == 2
