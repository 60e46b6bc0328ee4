"""Values of columns in the batches of a lease: labels, dense values, and names."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.errors import DataError
from pslib.schema import DenseField, Schema, SparseField
from tests.support.data.lease_readers import bits, reader_of

NUMBERS = [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_()]


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_labels_and_weights_may_have_any_type_of_number(tmp_path: Path, kind: pa.DataType) -> None:
    numbers = pa.array(np.array([0, 1, 1]).astype(kind.to_pandas_dtype()), kind)
    pq.write_table(pa.table({"y": numbers, "w": numbers, "k": [1, 2, 3]}), tmp_path / "a.parquet")
    batch = next(reader_of(tmp_path, 3, Schema(label="y", weight="w", sparse=["k"])).batches(0, 0))
    assert batch.weights is not None
    assert batch.labels.tolist() == batch.weights.tolist() == [0, 1, 1]


def test_half_floats_that_are_no_labels_or_weights_are_named_when_they_are_read(tmp_path: Path) -> None:
    for column, bad in (("y", 2.0), ("w", -1.0), ("w", math.inf)):
        table = {name: np.array([0, 1, 1], np.float16) for name in "yw"} | {"k": np.arange(3)}
        table[column][1] = bad
        pq.write_table(pa.table(table), tmp_path / "a.parquet")
        reader = reader_of(tmp_path, 3, Schema(label="y", weight="w", sparse=["k"]))
        with pytest.raises(DataError, match=f"row 1 .*column '{column}'.*got {bad}"):
            next(reader.batches(0, 0))


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ([0, 1, 2], "2"),
        ([0, 1, -1], "-1"),
        ([1.0, 0.0, 0.5], "0.5"),
        ([0, 1, None], "null"),
        ([0.0, 1.0, math.nan], "nan"),
        ([1.0, None, None], "null"),
    ],
)
def test_a_label_that_is_not_zero_or_one_is_named(tmp_path: Path, labels: list[object], shown: str) -> None:
    ok = [0.0] * 5 if isinstance(labels[0], float) else [0] * 5
    keys = pa.array(range(8))
    file = tmp_path / "a.parquet"
    table = pa.table({"y": pa.array([*ok, *labels]), "k": keys})
    pq.write_table(table, file, row_group_size=3, write_statistics=False)  # else it is told before
    row = 5 + (1 if labels[1] is None else 2)
    reader = reader_of(tmp_path, 8, Schema(label="y", sparse=["k"]), shuffle=True)
    place = f"{file}: row {row} (from 0) in row group {row // 3}, column 'y'"
    way = "say which values count as 1, in pandas by frame['y'] = frame['y'].isin(VALUES)"
    message = f"{place}: a label is 0 or 1, got {shown}; {way}; or leave such rows out"
    for _ in range(2):  # asking again gives the same answer, not half a window
        with pytest.raises(DataError) as caught:
            list(reader.batches(0, 0))
        assert list(caught.value.problems) == [message]


def test_a_text_that_looks_like_the_metadata_of_a_label_hides_no_wrong_label(tmp_path: Path) -> None:
    """Statistics hold values of texts, byte for byte: a column found too often is not used."""
    texts = pa.array([b"\x19\x18\x01y\x15\x02\x00"] * 4)
    table = pa.table({"y": [0, 1, 0, 7], "k": [1, 2, 3, 4], "text": texts})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    reader = reader_of(tmp_path, 4, Schema(label="y", sparse=["k"]))
    with pytest.raises(DataError, match=r"row 3 .*a label is 0 or 1, got 7"):
        list(reader.batches(0, 0))


def test_a_window_that_fails_half_way_does_not_pass_for_the_one_before(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [1, 1, 0, 0], "k": [1, 2, 3, 4]}), tmp_path / "a.parquet", row_group_size=2)
    bad = pa.table({"y": [0, 0, 0, 7], "k": [5, 6, 7, 8]})
    pq.write_table(bad, tmp_path / "b.parquet", row_group_size=2, write_statistics=False)
    reader = reader_of(tmp_path, 2, Schema(label="y", sparse=["k"]), window_rows=4, lease_rows=4)
    before = [bits(batch) for batch in reader.batches(0, 0)]
    with pytest.raises(DataError, match=r"b\.parquet: row 3 "):
        next(reader.batches(0, 1))
    assert [bits(batch) for batch in reader.batches(0, 0)] == before


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300])
def test_a_dense_value_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [0, 1], "x": [1.0, value]}), file, write_statistics=False)
    reader = reader_of(tmp_path, 2, Schema(label="y", dense=["x"]))
    with pytest.raises(
        DataError, match=r"row 1 \(from 0\) in row group 0, column 'x': a dense value is finite in float32"
    ):
        next(reader.batches(0, 0))


def test_a_dense_null_and_nan_are_filled(tmp_path: Path) -> None:
    table = pa.table(
        {"y": [0] * 4, "x": pa.array([1.5, None, math.nan, -2.0]), "b": [True, None, False, True]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    schema = Schema(label="y", dense=[DenseField("x", fill=9.0), DenseField("b", fill=0.5)])
    dense = next(reader_of(tmp_path, 4, schema).batches(0, 0)).dense
    assert dense.tolist() == [[1.5, 1], [9, 0.5], [9, 0], [-2, 1]]


def test_log1p_keeps_the_sign(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [0] * 3, "x": [-7, 0, 7]}), tmp_path / "a.parquet")
    schema = Schema(label="y", dense=[DenseField("x", log1p=True)])
    dense = next(reader_of(tmp_path, 3, schema).batches(0, 0)).dense
    np.testing.assert_allclose(dense[:, 0], [-math.log(8), 0, math.log(8)], rtol=1e-6)


@pytest.mark.parametrize("coded", [True, False])
def test_integers_are_squeezed_and_filled_and_may_make_keys_too(tmp_path: Path, coded: bool) -> None:
    """Dense values of a dictionary's numbers differ from the values that keys are made of."""
    numbers = [0, 7, 5_000_000_000, None, 7, -3]
    pq.write_table(pa.table({"n": numbers, "m": numbers}), tmp_path / "a.parquet", use_dictionary=coded)
    dense = [DenseField("n", 3.0, log1p=True), DenseField("m", -2.0)]
    keys = [SparseField("size", of="n", buckets=(1.0, 100.0))]
    batch = next(reader_of(tmp_path, 6, Schema(label=None, dense=dense, sparse=keys)).batches(0, 0))
    squeezed = np.log1p([0, 7, 5e9, 3, 7, 3]).astype(np.float32) * [1, 1, 1, 1, 1, -1]
    assert batch.dense[:, 0].tolist() == pytest.approx(squeezed.tolist(), rel=1e-6)
    assert batch.dense[:, 1].tolist() == [0, 7, 5e9, -2, 7, -3]
    alone = next(reader_of(tmp_path, 6, Schema(label=None, sparse=keys)).batches(0, 0))
    assert batch.keys[batch.sparse].tolist() == alone.keys[alone.sparse].tolist()
    assert alone.keys.size == 4


def test_a_schema_may_have_only_dense_or_only_ragged_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [0, 1], "x": [1, 2], "t": [[], [5, 5]]}), tmp_path / "a.parquet")
    dense = next(reader_of(tmp_path, 2, Schema(label="y", dense=["x"])).batches(0, 0))
    assert (dense.keys.size, dense.sparse.shape, dense.dense.tolist()) == (0, (2, 0), [[1], [2]])
    ragged = next(reader_of(tmp_path, 2, Schema(label="y", ragged=["t"])).batches(0, 0))
    assert (ragged.keys.size, ragged.dense.shape) == (1, (2, 0))
    assert ragged.ragged["t"].values.tolist() == [0, 0]


def test_a_column_name_may_hold_a_dot(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [0, 1], "a.b": ["u", "v"], "a": [1, 2]}), tmp_path / "a.parquet")
    batch = next(reader_of(tmp_path, 2, Schema(label="y", sparse=["a.b", "a"])).batches(0, 0))
    assert batch.keys.size == 4
