"""Values decide how a column is read, and both readings are told where two are possible."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from pslib.data.dataset import ParquetData
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.errors import DataError
from pslib.schema import Schema, SparseField

ROWS = 400
RANDOM = np.random.default_rng(0)
LABEL = RANDOM.integers(0, 2, ROWS)
USERS = RANDOM.integers(0, 90, ROWS)
START_S = 1_700_000_000


def written(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"click": LABEL, "user": USERS, **columns}), path)
    return path


def choice(path, name):
    return next(one for one in describe(path, "click").choices if one.name == name)


def some_null(values, kind):
    return pa.array(
        [None if n % 50 == 3 else kind.to_pandas_dtype()(one) for n, one in enumerate(values)], kind
    )


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_whole_numbers_that_are_floats_may_be_ids(tmp_path, kind):
    one = choice(written(tmp_path / "a.parquet", x=some_null(USERS, kind)), "x")
    assert one.role == "dense"
    assert "different whole numbers as " in one.reason
    assert "if they are ids, write them as integers" in one.reason
    many = some_null(USERS, kind)
    for schema in (None, Schema(label="click", dense=["x"])):
        notes = check(written(tmp_path / "a.parquet", x=many), schema).notes
        assert f"column 'x': whole numbers as {kind}, 8 missing: if they are ids" in "".join(notes)
    half = choice(written(tmp_path / "a.parquet", x=some_null(USERS + 0.5, kind)), "x")
    assert "a number with fractions" in half.reason
    assert "ids" not in half.reason
    flag = choice(written(tmp_path / "a.parquet", x=some_null(RANDOM.integers(0, 2, ROWS), kind)), "x")
    assert "ids" not in flag.reason


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}.5", "0.5"),
        ("{},000", "1,000"),
        ("${}", "$1"),
        ("{}%", "1%"),
        ("1,{:03}.25", "1,001.25"),
        ("{}", "1"),
    ],
)
def test_numbers_as_text_may_be_quantities(tmp_path, text, told):
    values = [text.format(one % 7) if n else told for n, one in enumerate(USERS)]
    one = choice(written(tmp_path / "a.parquet", x=values), "x")
    assert one.role == "sparse"
    assert f"each is the text of a number ({told!r})" in one.reason
    assert "text of" not in choice(written(tmp_path / "a.parquet", x=[*values[1:], "many"]), "x").reason


TIMES = [
    (1, "s", "seconds"),
    (10**3, "ms", "milliseconds"),
    (10**6, "us", "microseconds"),
    (10**9, "ns", "nanos"),
]


@pytest.mark.parametrize(("a_second", "unit", "name"), TIMES)
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()], ids=str)
def test_whole_times_are_told_by_their_unit(tmp_path, a_second, unit, name, kind):
    times = pa.array([(START_S + 3_600 * n) * a_second for n in range(ROWS)], kind)
    path = written(tmp_path / "a.parquet", at=times)
    reason = choice(path, "at").reason
    assert f"if they are {name}" in reason
    assert "(2023-11-14 to 2023-12-01)" in reason
    notes = "".join(check(path, Schema(label="click", sparse=[SparseField("h", of="at", take="hour")])).notes)
    assert (f"it looks like {name}" in notes) == (unit != "s")
    assert (f"timestamp('{unit}')" in notes) == (unit != "s")
    assert "since 1970" not in choice(path, "user").reason


def test_texts_of_times_and_lists_of_floats_are_told(tmp_path):
    texts = [f"2024-05-{1 + n % 9:02} 10:00:00" for n in range(ROWS)]
    path = written(tmp_path / "a.parquet", at=texts, tags=[[float(one)] for one in USERS])
    reason = choice(path, "at").reason
    assert (
        "each is the text of a time ('2024-05-01 10:00:00'): written as a timestamp, {name: at_hour" in reason
    )
    assert choice(path, "tags").reason.startswith("lists of whole numbers as floats: cast them to integers")


@pytest.mark.parametrize(
    "form", ["{:02}.03.2026 10:00", "{:02}.03.2026", "3/{}/2026 9:05 PM", "03/{:02}/2026 09:05:00"]
)
def test_times_of_a_form_that_is_not_read_are_left_out_with_the_form_that_is(tmp_path, form):
    """As keys they were useless: each is seen once, and those to come never were."""
    texts = [form.format(1 + n % 28) for n in range(ROWS)]
    one = choice(written(tmp_path / "a.parquet", at=texts), "at")
    assert one.role == ""
    form = f"times in a form that is not read ({texts[0]!r})"
    assert one.reason == f"{form}: write them as 2026-03-01 23:02, and the split is by them"


@pytest.mark.parametrize("texts", [("yes", "no"), ("0", "1"), ("True", "False")])
def test_texts_of_two_values_may_be_the_label(tmp_path, texts):
    pq.write_table(pa.table({"bought": [texts[one] for one in LABEL], "user": USERS}), tmp_path / "a.parquet")
    with pytest.raises(
        DataError, match=r"name it with --label; if it is 'bought', say which values count as 1, in"
    ):
        describe(tmp_path / "a.parquet")


def test_a_mark_beyond_the_calendar_is_told_as_no_time(tmp_path):
    path = written(tmp_path / "a.parquet", at=[START_S] * (ROWS - 1) + [2**63 - 1])
    schema = Schema(label="click", sparse=[SparseField("h", of="at", take="day")])
    assert "is no time, or one in another unit" in "".join(check(path, schema).notes)
    forever = written(tmp_path / "b.parquet", at=[START_S] * (ROWS - 1) + [253_402_300_799])
    assert "1970" not in "".join(check(forever, schema).notes)


def test_a_column_without_a_name_and_columns_of_folders_are_told(tmp_path):
    path = written(tmp_path / "day=2024-05-01" / "city=S%C3%A3o%20Paulo" / "a.parquet", **{"": USERS})
    assert choice(path, "").reason.startswith("it has no name")
    assert choice(path, "city").reason == (
        "it stands in the names of folders (city=São Paulo): write it as a column"
    )
    report = check(path, Schema(label="click", sparse=["day"]))
    assert "no column 'day'; it stands in the name of a folder (day=2024-05-01)" in report.problems[0]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (decimal.Decimal("1.50"), "cast it to double for a number, to int64 for keys"),
        (dt.time(7), "cast it to int64"),
        (dt.timedelta(1), "cast it to int64"),
        (dt.date(2024, 5, 1), "take: weekday} makes keys of it"),
        ({"a": 1}, "make columns of what is in it"),
        ([[1]], "flatten it"),
        ([decimal.Decimal(1)], "cast what is in it"),
    ],
)
def test_types_that_make_no_field_are_left_out_with_what_would(tmp_path, value, hint):
    path = written(tmp_path / "a.parquet", x=[value] * ROWS)
    assert choice(path, "x").reason.endswith(hint)
    with pytest.raises(DataError, match="column 'x': a label is integer, float or boolean, got "):
        describe(path, "x")


def test_ids_of_an_extension_type_are_keys_by_their_storage(tmp_path):
    raw = pa.array([uuid.UUID(int=int(one)).bytes for one in USERS], pa.binary(16))
    path = written(tmp_path / "a.parquet", x=pa.ExtensionArray.from_storage(pa.uuid(), raw))
    assert choice(path, "x").reason == f"{len(set(USERS.tolist()))} different values"


def text_of(folder, name, values):
    lines = [f"u{number % 7},{value},{number // 2 % 2}" for number, value in enumerate(values)]
    (folder / f"{name}.csv").write_text("\n".join(["user,x,click", *lines]) + "\n")


@pytest.mark.parametrize(
    ("files", "role"),
    [
        ({"a": ["7", "8"], "b": ["0.5", "7.25"]}, "dense"),
        ({"a": ["0.5", "7.25"], "b": ["7", "8"], "c": ["NA", "007"], "d": ["", ""]}, "dense"),
        ({"a": ["7", "8"], "b": ["NA", "7"]}, "sparse"),
        ({"a": ["7", "8"], "b": ["x", "7"], "c": ["NA", "7"]}, "sparse"),
    ],
)
def test_a_column_of_several_files_of_text_is_one_column_as_it_is_trained(tmp_path, files, role):
    for name, values in files.items():
        text_of(tmp_path, name, values * 20)
    found = describe(tmp_path)
    (one,) = (one for one in found.choices if one.name == "x")
    assert one.role == role
    assert ParquetData(tmp_path, found.schema).rows == 40 * len(files)
    assert check(tmp_path, found.schema).ok


@pytest.mark.parametrize("values", [["0.5", "4.4"], ["true", "false"]])
def test_texts_that_look_like_others_in_one_file_are_read_by_the_way_that_is_told(tmp_path, values):
    (tmp_path / "logs").mkdir()
    text_of(tmp_path / "logs", "a", ["ios", "4.4"] * 20)
    text_of(tmp_path / "logs", "b", values * 20)
    schema, lines = Schema(label="click", sparse=["user", "x"]), []
    for look in (lambda: describe(tmp_path / "logs"), lambda: ParquetData(tmp_path / "logs", schema)):
        with pytest.raises(DataError) as error:
            look()
        lines += error.value.problems
    told = "make Parquet of it: pslib convert csv --no-label --sparse x SRC OUT, and give OUT in place of SRC"
    assert len(lines) == 2
    assert all(told in line for line in lines)
    source, out = tmp_path / "logs" / "b.csv", tmp_path / "b.parquet"
    assert main(["convert", "csv", "--no-label", "--sparse", "x", str(source), str(out)]) == 0
    assert pq.read_table(out)["x"].to_pylist() == values * 20
    assert ParquetData([tmp_path / "logs" / "a.csv", out], schema).rows == 80
    assert describe([tmp_path / "logs" / "a.csv", out]).schema == schema


def test_a_column_that_some_files_have_in_a_type_of_no_field_is_noted(tmp_path):
    text_of(tmp_path, "a", ["ios", "4.4"] * 20)
    text_of(tmp_path, "b", ["2024-05-01", "2024-05-02"] * 20)
    assert [note for note in describe(tmp_path).report.notes if "column 'x'" in note] == [
        "column 'x': in some files a date32[day]: {name: x_weekday, of: x, take: weekday} makes keys of it"
    ]
