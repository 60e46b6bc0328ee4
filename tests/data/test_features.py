"""Keys from times, buckets and crosses, each beside its definition in plain Python."""

from __future__ import annotations

import datetime as dt
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cython_ext.common.hashing import hash_ints, mix64
from launch.job.job import read_job
from pslib.data.columns import keys_of
from pslib.data.dataset import ParquetData
from pslib.data.features import field_keys
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.data.order import GroupSlice
from pslib.data.window import WindowDecoder
from pslib.errors import ConfigurationError, DataError
from pslib.schema import DenseField, Schema, SparseField


def keys(field: SparseField, **columns: pa.Array) -> list[int]:
    return field_keys(pa.record_batch(columns), field).tolist()


def key_of_integer(value: int | None, salt: int) -> int:
    return int(keys_of(pa.array([value], pa.int64()), salt)[0])


def expected(field: SparseField, values: list[int | None]) -> list[int]:
    return [key_of_integer(value, field.salt) for value in values]


# --- time

MOMENTS = [
    dt.datetime(2014, 10, 21, 23, 59),
    None,
    dt.datetime(1969, 12, 31, 0, 0),
    dt.datetime(2024, 2, 29, 7),
]


@pytest.mark.parametrize(
    ("take", "of"),
    [
        ("hour", lambda moment: moment.hour),
        ("weekday", lambda moment: moment.weekday()),
        ("month", lambda moment: moment.month),
        ("day", lambda moment: (moment.date() - dt.date(1970, 1, 1)).days),
    ],
)
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parts_of_a_time_are_those_of_the_calendar(take, of, unit):
    field = SparseField("when", take=take)
    told = keys(field, when=pa.array(MOMENTS, pa.timestamp(unit)))
    assert told == expected(field, [None if moment is None else of(moment) for moment in MOMENTS])


def test_a_time_zone_counts_and_whole_seconds_are_utc():
    field = SparseField("hour", of="when", take="hour")
    there = pa.array([dt.datetime(2024, 7, 1, 22, 30)], pa.timestamp("s", "UTC")).cast(
        pa.timestamp("s", "Asia/Tokyo")
    )
    assert keys(field, when=there) == expected(field, [7])
    assert keys(field, when=pa.array([22 * 3600 + 86_400, None], pa.int64())) == expected(field, [22, None])


def test_a_date_has_a_weekday():
    field = SparseField("when", take="weekday")
    assert keys(field, when=pa.array([dt.date(2026, 11, 21)], pa.date32())) == expected(field, [5])


def test_parts_of_a_time_beyond_nanoseconds_are_right(tmp_path):
    """Spark, Hive and Impala write INT96, with 9999-12-31 for "for ever"; Arrow wraps it by default."""
    times = [dt.datetime(9999, 12, 31, 23), dt.datetime(1, 1, 1), dt.datetime(2300, 5, 5, 7), None]
    table = pa.table({"until": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    fields = [SparseField(take, of="until", take=take) for take in ("hour", "month")]
    data = ParquetData(tmp_path / "a.parquet", Schema(label=None, sparse=fields))
    found = WindowDecoder(data).decode([GroupSlice(0, 0, 4)]).sparse_keys
    for place, take in enumerate(("hour", "month")):
        parts = [None if time is None else getattr(time, take) for time in times]
        assert found[:, place].tolist() == expected(fields[place], parts)


# --- buckets

numbers = st.one_of(st.none(), st.floats(width=32), st.sampled_from([0.0, 18.0, 25.0, -0.0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=1))
def test_a_bucket_is_that_of_the_last_bound_that_is_not_above(values):
    bounds = (0.0, 18.0, 25.0)
    field = SparseField("age", buckets=bounds)
    found = [
        None if value is None or math.isnan(value) else sum(bound <= value for bound in bounds)
        for value in values
    ]
    assert keys(field, age=pa.array(values, pa.float32())) == expected(field, found)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), min_size=1))
def test_the_squeeze_of_criteos_winners(values):
    field = SparseField("count", buckets="log")
    found = [None if v is None else math.floor(math.log(v) ** 2) if v > 2 else v for v in values]
    assert keys(field, count=pa.array(values, pa.int64())) == expected(field, found)


# --- crosses


def test_a_cross_tells_every_pair_of_values_from_every_other():
    users, cities = ["a", "b", None], ["b", "a", None, "c"]
    pairs = [(user, city) for user in users for city in cities]
    field = SparseField("both", of=("user", "city"))
    columns = {
        "user": pa.array([user for user, _ in pairs]),
        "city": pa.array([city for _, city in pairs]).dictionary_encode(),
    }
    assert len(set(keys(field, **columns))) == len(pairs)


def test_a_cross_of_three_is_what_its_page_says():
    field = SparseField("three", of=("a", "b", "c"))
    columns = {"a": pa.array([1, 2]), "b": pa.array(["x", None]), "c": pa.array([True, False])}
    chained = keys_of(columns["a"], field.salt)
    for name in "bc":
        chained = mix64(chained) ^ keys_of(columns[name], field.salt)
    assert keys(field, **columns) == hash_ints(chained.view(np.int64), field.salt, None).tolist()


def test_keys_of_all_kinds_never_change():
    """They stand in checkpoints."""
    moment = pa.array([dt.datetime(2014, 10, 21, 23)], pa.timestamp("s"))
    columns = {"t": moment, "x": pa.array([19.5]), "u": pa.array(["a"]), "v": pa.array([7])}
    fields = [
        SparseField("hour", of="t", take="hour"),
        SparseField("age", of="x", buckets=(18.0, 25.0)),
        SparseField("squeezed", of="x", buckets="log"),
        SparseField("cross", of=("u", "v")),
    ]
    assert [f"{keys(field, **columns)[0]:016x}" for field in fields] == GOLDEN


GOLDEN = ["39c35c5c78868ae2", "3b9f4ab3dd17b588", "039bb6cb9b30e0e4", "ce1830d8301c649b"]


# --- what does not go together


ALONE = "take, buckets and a cross of columns each need a field of their own"


@pytest.mark.parametrize(
    ("settings_of_it", "said"),
    [
        ({"take": "minute"}, "take: expected one of hour, weekday, day, month, got 'minute'"),
        (
            {"of": ("a", "b"), "take": "hour"},
            ALONE,
        ),
        (
            {"buckets": (1.0,), "take": "hour"},
            ALONE,
        ),
        ({"buckets": (2.0, 1.0)}, "buckets: expected ascending numbers or 'log', got (2.0, 1.0)"),
        ({"buckets": ()}, "buckets: expected ascending numbers or 'log', got ()"),
        ({"buckets": (1.0, math.nan)}, "buckets: expected ascending numbers or 'log', got (1.0, nan)"),
        ({"buckets": "logs"}, "buckets: expected ascending numbers or 'log', got 'logs'"),
        ({"of": ("a", "a")}, "of: expected a column, or several that differ"),
    ],
)
def test_a_field_that_can_not_be_is_refused_in_one_line(settings_of_it, said):
    with pytest.raises(ConfigurationError) as error:
        SparseField("f", **settings_of_it)
    assert str(error.value) == f"sparse field 'f': {said}"


def test_a_field_is_a_name_or_a_field_and_no_mapping_as_in_a_file():
    with pytest.raises(ConfigurationError) as error:
        Schema(label="y", sparse=["u", {"name": "f", "of": ["u", "v"]}])
    assert str(error.value) == (
        "sparse: expected a column name or a pslib.SparseField, got {'name': 'f', 'of': ['u', 'v']}"
    )


def test_the_label_can_not_be_a_feature_by_another_name():
    with pytest.raises(ConfigurationError, match="made from the label, which it would give away"):
        Schema(label="y", sparse=["u", SparseField("f", of=("u", "y"))])


@pytest.mark.parametrize("fill", [float("nan"), float("inf")])
def test_what_stands_for_null_is_a_number_that_a_model_can_train_on(fill: float) -> None:
    """Squeezed, it would look like one."""
    with pytest.raises(ConfigurationError, match=r"'price': fill: expected a finite number, got (nan|inf)"):
        DenseField("price", fill=fill, log1p=True)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            SparseField("f", of="name", take="hour"),
            "take needs a timestamp, a date, or whole seconds",
        ),
        (SparseField("f", of="name", buckets="log"), "buckets need a number, got string"),
        (SparseField("f", of=("name", "nam")), "no column 'nam'; did you mean 'name'?"),
    ],
)
def test_a_column_that_does_not_fit_its_field_is_named_with_its_file(tmp_path, field, said):
    pq.write_table(pa.table({"label": [0, 1], "name": ["a", "b"]}), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=said.replace("?", r"\?")):
        ParquetData(tmp_path / "data.parquet", Schema(label="label", sparse=[field]))


# --- all the way

JOB = """
data:
  train: data.parquet
  schema:
    label: label
    dense: [price]
    sparse:
      - user
      - {name: hour, of: when, take: hour}
      - {name: price_range, of: price, buckets: [1, 10, 100]}
      - {name: user_hour, of: [user, price_name]}
model: {name: lr}
"""


def test_a_job_reads_a_column_once_and_makes_several_fields_of_it(tmp_path):
    table = pa.table(
        {
            "label": [0, 1, 1],
            "user": [5, 6, None],
            "when": pa.array([3600, 7200, None], pa.timestamp("s")),
            "price": [0.5, None, 50.0],
            "price_name": ["low", None, "high"],
        }
    )
    pq.write_table(table, tmp_path / "data.parquet")
    (tmp_path / "job.yaml").write_text(JOB)
    schema = read_job(tmp_path / "job.yaml").data.schema
    assert schema.columns == ("label", "price", "user", "when", "price_name")
    assert Schema.from_dict(schema.to_dict()) == schema
    assert check(tmp_path / "data.parquet", schema).ok
    data = ParquetData(tmp_path / "data.parquet", schema)
    made = WindowDecoder(data).decode([GroupSlice(0, 0, 3)])
    whole = table.combine_chunks().to_batches()[0]
    assert made.sparse_keys.T.tolist() == [field_keys(whole, field).tolist() for field in schema.sparse]
    assert made.dense[:, 0].tolist() == [0.5, 0.0, 50.0]


def test_describe_says_how_a_time_becomes_a_field(tmp_path):
    table = pa.table({"label": [0, 1], "user": [1, 2], "when": pa.array([1, 2], pa.timestamp("s"))})
    pq.write_table(table, tmp_path / "data.parquet")
    found = describe(tmp_path / "data.parquet")
    assert found.schema.columns == ("label", "user")
    assert (
        found.choices[-1].reason
        == "a timestamp[ms]: {name: when_hour, of: when, take: hour} makes keys of it"
    )
