"""Items of data whose files write them differently: each is there once, under a value that makes its key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data import ParquetData
from pslib.data.columns import elements_of, keys_of
from pslib.data.features import field_keys
from pslib.data.item_catalog import catalogue_of, record_batches
from pslib.errors import DataError
from pslib.schema import RaggedField, Schema, SparseField

ITEM = SparseField("item")
ITEMS = RaggedField("item")
MIXED = {
    "int32, then int64": [pa.array([1, 2], pa.int32()), pa.array([1, 1 << 40])],
    "int64, then uint64": [pa.array([-1, 2]), pa.array([1, (1 << 64) - 1], pa.uint64())],
    "uint32, then uint64": [pa.array([1, 7], pa.uint32()), pa.array([1, (1 << 64) - 1], pa.uint64())],
    "booleans, then integers": [pa.array([True, False, None]), pa.array([1, 5])],
    "nothing, then integers": [pa.nulls(3), pa.array([1, 2])],
    "integers, then nothing": [pa.array([1, 2]), pa.nulls(3)],
    "string, then large_string": [pa.array(["a"]), pa.array(["b", "a"], pa.large_string())],
    "string, then binary": [pa.array(["a", "ü"]), pa.array([b"a", b"\xff"], pa.binary())],
    "a dictionary, then strings": [pa.array(["a", None, "a"]).dictionary_encode(), pa.array(["b"])],
    "string_view": [pa.array(["a", "b", "a"], pa.string_view())],
    "bytes of one size, then others": [pa.array([b"aa"], pa.binary(2)), pa.array([b"b"], pa.binary_view())],
}
LISTS = {
    "int32, then int64": [pa.array([[1], [2, 3]], pa.list_(pa.int32())), pa.array([[1 << 40, 1]])],
    "no list, then some": [pa.nulls(2), pa.array([[1], None])],
    "some, then no list": [pa.array([["a"]], pa.list_(pa.string_view())), pa.nulls(2)],
}


def written(folder: Path, parts: list[pa.Array], field: SparseField | RaggedField = ITEM) -> ParquetData:
    for number, part in enumerate(parts):
        pq.write_table(pa.table({"item": part}), folder / f"{number}.parquet")
    lists = isinstance(field, RaggedField)
    return ParquetData(folder, Schema(label=None, sparse=[] if lists else [field], ragged=[field] * lists))


@pytest.mark.parametrize("parts", MIXED.values(), ids=MIXED)
def test_each_item_is_there_once_under_a_value_that_makes_its_key(parts: list[pa.Array], tmp_path: Path):
    keys, values = catalogue_of(written(tmp_path, parts), ITEM)
    np.testing.assert_array_equal(keys, np.unique(np.concatenate([keys_of(one, ITEM.salt) for one in parts])))
    np.testing.assert_array_equal(keys_of(values, ITEM.salt), keys)


def test_unsigned_items_are_shown_without_a_sign_and_others_by_their_bits(tmp_path: Path):
    for name, most in (("uint32, then uint64", (1 << 64) - 1), ("int64, then uint64", 2)):
        (tmp_path / name).mkdir()
        _, values = catalogue_of(written(tmp_path / name, MIXED[name]), ITEM)
        assert max(values.to_pylist()) == most


@pytest.mark.parametrize("parts", LISTS.values(), ids=LISTS)
def test_items_of_lists_are_those_of_all_files(parts: list[pa.Array], tmp_path: Path):
    keys, values = catalogue_of(written(tmp_path, parts, ITEMS), ITEMS)
    elements = [keys_of(elements_of(one)[0], ITEMS.salt) for one in parts]
    np.testing.assert_array_equal(keys, np.unique(np.concatenate(elements)))
    np.testing.assert_array_equal(keys_of(values, ITEMS.salt), keys)


def test_items_are_the_same_however_many_are_sorted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(3)
    data = written(tmp_path, [pa.array(rng.integers(0, 40, 30)) for _ in range(9)])
    keys, values = catalogue_of(data, ITEM)
    monkeypatch.setattr("pslib.data.item_catalog.SORT_AT_ONCE", 1)
    again, names = catalogue_of(data, ITEM)
    np.testing.assert_array_equal(again, keys)
    assert names.equals(values)


TIMES = {
    "uint64 beyond int64, by its bits": (pa.array([(1 << 64) - 90_000], pa.uint64()), pa.array([-90_000])),
    "the last nanosecond": (
        pa.array([(1 << 63) - 1], pa.timestamp("ns")),
        pa.array([((1 << 63) - 1) // 10**9], pa.timestamp("s")),
    ),
}


@pytest.mark.parametrize("take", ["hour", "weekday", "day", "month"])
@pytest.mark.parametrize(("times", "same"), TIMES.values(), ids=TIMES)
def test_times_at_the_ends_of_their_types_have_keys(take: str, times: pa.Array, same: pa.Array):
    field = SparseField("item", take=take)
    one, other = (field_keys(pa.record_batch({"item": array}), field) for array in (times, same))
    np.testing.assert_array_equal(one, other)


def test_the_first_nanoseconds_have_a_day(tmp_path: Path):
    field = SparseField("item", take="day")
    data = written(tmp_path, [pa.array([-(1 << 63) + 1, 0], pa.timestamp("ns"))], field)
    (batch,) = record_batches(data)
    assert field_keys(batch, field).size == 2


def test_a_time_zone_that_nobody_knows_is_refused_before_training(tmp_path: Path):
    with pytest.raises(
        DataError, match=r"'item': time zone 'Mid/Sea' is not known here; write the column in"
    ):
        written(tmp_path, [pa.array([1], pa.timestamp("us", "Mid/Sea"))], SparseField("item", take="hour"))
