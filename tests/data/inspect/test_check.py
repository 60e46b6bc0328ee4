"""A look at data names what would stop a run, with file, row and column, and never raises for bad data."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.data.inspect.check import check
from pslib.data.synthetic.generator import GeneratorConfig, generate, generated_schema
from pslib.schema import DenseField, RaggedField, Schema

SCHEMA = Schema(label="label", dense=["price"], sparse=["user"], ragged=[RaggedField("tags")])
COLUMNS = {
    "label": [1, 0, 0, 1],
    "price": [0.5, None, -2.0, 7.0],
    "user": ["ann", "bob", None, "ann"],
    "tags": [[1, 2, 3], [], None, [9, None]],
}


def write(path, columns=None, rows_a_group=2, **changes) -> str:
    table = pa.table({**(columns or COLUMNS), **changes})
    pq.write_table(table, path, row_group_size=rows_a_group)
    return str(path)


def column(report, name):
    return next(column for column in report.columns if column.name == name)


def test_sound_data_is_described_and_has_no_problem(tmp_path):
    report = check(write(tmp_path / "a.parquet"), SCHEMA)
    assert (report.ok, report.rows, report.label_rate, report.notes) == (True, 4, 0.5, ())
    assert report.files[0].group_rows == (2, 2)
    price, user, tags = (column(report, name) for name in ("price", "user", "tags"))
    assert (price.role, price.nulls, price.smallest, price.largest) == ("dense", 1, -2, 7)
    assert (user.nulls, user.distinct, user.smallest, user.largest) == (1, 2, 3, 3)
    assert (tags.nulls, tags.empty_lists, tags.null_elements) == (1, 1, 1)
    assert tags.lengths == (0, pytest.approx(5 / 3), 3)
    assert (tags.smallest, tags.largest, tags.distinct) == (1, 9, 4)


def test_the_lines_hold_every_column_and_the_verdict(tmp_path):
    path = write(tmp_path / "a.parquet")
    lines = check(path, SCHEMA).lines()
    assert lines[0] == f"{path}: 4 rows in 2 row groups of 2 to 2 rows"
    assert lines[1] == "label: 50.00% positive of 4 rows"
    assert [line.split()[:2] for line in lines[3:7]] == [
        ["label", "label"], ["price", "dense"], ["user", "sparse"], ["tags", "ragged"],
    ]  # fmt: skip
    assert "lists of 0 to 3, mean 1.7, 1 empty, 1 null elements" in lines[6]
    assert lines[-1] == "no problem found"


@pytest.mark.parametrize(
    ("label", "shown"), [([1, 0, 2, 3], "2"), ([1, 0, None, 1], "null"), ([0.0, 1.0, 0.5, 1.0], "0.5")]
)
def test_the_first_bad_label_is_named_by_file_row_and_column(tmp_path, label, shown):
    path = write(tmp_path / "a.parquet", label=label)
    report = check(path, SCHEMA)
    assert not report.ok
    assert report.problems[0].startswith(
        f"{path}: row 2 (from 0) in row group 1, column 'label': a label is 0 or 1, got {shown}"
    )
    assert ("; 2 such values in all" in report.problems[0]) == (label[3] == 3)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300])
def test_an_infinite_dense_value_is_a_problem(tmp_path, value):
    report = check(write(tmp_path / "a.parquet", price=[0.5, 1.0, 2.0, value]), SCHEMA)
    assert len(report.problems) == 1
    assert (
        f"row 3 (from 0) in row group 1, column 'price': a dense value is finite in float32, got {value}"
        in report.problems[0]
    )
    assert column(report, "price").infinite == 1


def test_nan_counts_as_missing_and_is_a_note(tmp_path):
    report = check(write(tmp_path / "a.parquet", price=[0.5, math.nan, math.nan, 1.0]), SCHEMA)
    assert report.ok
    assert (
        "row 1 (from 0) in row group 0, column 'price': a value that is no number counts as missing"
        in report.notes[0]
    )
    assert "2 such values" in report.notes[0]
    assert column(report, "price").nans == 2
    assert (column(report, "price").smallest, column(report, "price").largest) == (0.5, 1.0)


def test_a_list_where_a_scalar_belongs_and_a_missing_column_come_at_once(tmp_path):
    schema = Schema(label="label", dense=["prize"], sparse=["tags"], ragged=["user"])
    report = check(write(tmp_path / "a.parquet"), schema)
    assert len(report.problems) == 3
    assert "'prize'; did you mean 'price'?" in report.problems[0]
    assert "a sparse column is" in report.problems[1]
    assert "a ragged column is" in report.problems[2]


def test_row_numbers_count_through_the_row_groups_of_a_file_and_restart_in_the_next(tmp_path):
    write(tmp_path / "a.parquet")
    second = write(tmp_path / "b.parquet", label=[1, 1, 1, 7])
    report = check(tmp_path, SCHEMA)
    assert report.rows == 8
    assert report.problems[0].startswith(f"{second}: row 3 (from 0)")


def test_a_file_that_is_cut_or_no_parquet_is_named(tmp_path):
    whole = (tmp_path / "whole.parquet", tmp_path / "cut.parquet", tmp_path / "text.parquet")
    write(whole[0])
    whole[1].write_bytes(whole[0].read_bytes()[:-30])
    whole[2].write_text("label,price\n1,2\n")
    for schema in (SCHEMA, None):
        report = check(tmp_path, schema)
        assert len(report.problems) == 2
        assert all("expected a Parquet file" in problem for problem in report.problems)
        assert [problem.split(":")[0] for problem in report.problems] == [str(whole[1]), str(whole[2])]
        assert report.rows == 4


def test_a_column_that_ends_before_its_file_is_a_problem(tmp_path, monkeypatch):
    path, whole = write(tmp_path / "a.parquet"), pq.ParquetFile.iter_batches

    def short(self, *args, columns, **more):  # as a bit in the head of a page makes it, without an error
        for batch in whole(self, *args, columns=columns, **more):
            yield batch.slice(0, batch.num_rows - ("user" in columns))

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", short)
    (problem,) = check(path, SCHEMA).problems
    assert "row group 0, column 'user': the file is damaged (expected 2 rows, as its footer says," in problem


def test_a_damaged_page_is_a_problem_of_its_column(tmp_path):
    path = tmp_path / "a.parquet"
    numbers = np.random.default_rng(0).random(20_000)
    table = pa.table({"label": np.zeros(20_000, np.int8), "x": numbers})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(bytes(content))
    pq.read_metadata(path)  # the end of the file is sound
    report = check(path, Schema(label="label", dense=["x"]))
    damaged = [problem for problem in report.problems if "the file is damaged" in problem]
    assert len(damaged) == 1
    assert "column 'x'" in damaged[0]


def test_a_path_that_is_not_there_is_a_problem(tmp_path):
    for schema in (SCHEMA, None):
        report = check(tmp_path / "absent.parquet", schema)
        assert report.problems == (f"{tmp_path / 'absent.parquet'}: no such file or folder",)
        assert report.lines()[-1] == "1 problem"


def test_without_a_schema_all_columns_are_described(tmp_path):
    columns = {
        **COLUMNS,
        "when": pa.array([0, 1, 2, 3], pa.timestamp("s")),
        "flag": [True, False, None, True],
    }
    report = check(write(tmp_path / "a.parquet", columns))
    assert [(one.name, one.role) for one in report.columns] == [
        ("label", "label"), ("price", ""), ("user", ""), ("tags", ""), ("flag", ""),
    ]  # fmt: skip
    assert report.label_rate == 0.5
    assert report.ok


def test_without_a_schema_nan_and_infinity_are_counted_only(tmp_path):
    report = check(write(tmp_path / "a.parquet", price=[math.inf, math.nan, 1.0, 2.0]))
    assert report.ok
    assert "1 nan, 1 infinite" in "\n".join(report.lines())


def test_one_class_missing_columns_of_nothing_and_tiny_row_groups_are_notes(tmp_path):
    path = write(tmp_path / "a.parquet", label=[0, 0, 0, 0], user=pa.array([None] * 4, pa.string()))
    notes = "\n".join(check(path, SCHEMA).notes)
    assert (
        "column 'label': every label is 0: AUC is not defined, and nothing can be learnt; is it the" in notes
    )
    assert "column 'user': every value is missing" in notes
    many = {"label": [0, 1] * 50, "x": list(range(100))}
    assert "row groups of 1 row are slow" in "".join(check(write(tmp_path / "b", many, 1)).notes)


def test_a_file_without_rows_is_described(tmp_path):
    empty = {name: pa.array([], pa.int64()) for name in ("label", "user")}
    report = check(write(tmp_path / "a.parquet", empty), Schema(label="label", sparse=["user"]))
    assert report.rows == 0
    assert "expected at least one row" in report.problems[0]
    assert report.lines()


def test_generated_data_has_no_problem_and_its_vocabularies_are_seen(tmp_path):
    config = GeneratorConfig(train_rows=40_000, test_rows=10, vocabularies=(100, 20_000), dense_fields=2)
    data = generate(tmp_path, config)
    report = check(data.train_path, generated_schema(config))
    assert report.ok
    assert report.label_rate == pytest.approx(data.train.positives / data.train.rows)
    table = pq.read_table(data.train_path)
    for name in ("C1", "C2", "I1"):
        exact = len(table[name].drop_null().unique())
        assert column(report, name).distinct is None or column(report, name).distinct == pytest.approx(
            exact, rel=0.01
        )
    assert column(report, "I1").nulls == table["I1"].null_count


def test_types_of_all_widths_dictionaries_and_bytes_are_read(tmp_path):
    columns = {
        "label": pa.array([True, False]),
        "a": pa.array([2**64 - 1, 5], pa.uint64()),
        "b": pa.array(["x", None]).dictionary_encode(),
        "c": pa.array([b"\x00", b"\xff\xff"], pa.binary()),
        "d": pa.array([1.0, 2.0], pa.float16()),
        "e": pa.array([["x"], None], pa.large_list(pa.large_string())),
    }
    report = check(write(tmp_path / "a.parquet", columns))
    assert {one.name: (one.smallest, one.largest) for one in report.columns} == {
        "label": (0, 1), "a": (5, 2**64 - 1), "b": (1, 1), "c": (1, 2), "d": (1, 2), "e": (1, 1),
    }  # fmt: skip
    assert report.label_rate == 0.5


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 1, 0, 5, None]),
            st.none() | st.floats(width=32) | st.sampled_from([math.nan, math.inf]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 7),
)
def test_counts_and_first_places_equal_those_of_plain_python(tmp_path_factory, rows, rows_a_group):
    labels, prices = zip(*rows, strict=True)
    path = tmp_path_factory.mktemp("check") / "a.parquet"
    columns = {
        "label": pa.array(labels, pa.int32()),
        "price": pa.array(prices, pa.float64(), from_pandas=False),
    }
    report = check(write(path, columns, rows_a_group), Schema(label="label", dense=["price"]))
    bad = [i for i, label in enumerate(labels) if label not in (0, 1)]
    infinite = [i for i, price in enumerate(prices) if price is not None and math.isinf(price)]
    price = column(report, "price")
    assert price.nulls == sum(value is None for value in prices)
    assert price.nans == sum(value is not None and math.isnan(value) for value in prices)
    assert price.infinite == len(infinite)
    finite = [value for value in prices if value is not None and math.isfinite(value)]
    assert (price.smallest, price.largest) == ((min(finite), max(finite)) if finite else (None, None))
    expected = [("label", row) for row in bad[:1]] + [("price", row) for row in infinite[:1]]
    assert len(report.problems) == len(expected)
    for problem, (name, row) in zip(report.problems, expected, strict=True):
        assert f"row {row} (from 0) in row group {row // rows_a_group}, column {name!r}" in problem


def test_a_dense_column_that_reaches_far_is_a_note_until_it_is_squeezed(tmp_path):
    path = write(tmp_path / "a.parquet", price=[0.5, 1.0, None, -900.0])
    said = check(path, SCHEMA)
    assert said.ok
    assert any(
        "column 'price': values from -900 to 1 " in note and "log1p: true" in note for note in said.notes
    )
    squeezed = Schema(label="label", dense=[DenseField("price", log1p=True)])
    assert check(path, squeezed).notes == ()
    near = write(tmp_path / "b.parquet", price=[0.5, 1.0, None, -30.0])
    assert check(near, SCHEMA).notes == ()


def test_a_label_that_is_text_has_no_rate(tmp_path):
    report = check(write(tmp_path / "a.parquet", label=["0", "1", "1", "0"]), SCHEMA)
    assert report.label_rate is None
    assert report.notes == ()
    assert "a label is integer, float or boolean" in report.problems[0]


def test_a_text_file_is_pointed_to_the_converter(tmp_path):
    (tmp_path / "clicks.txt").write_text("label,price\n1,2\n")
    (problem,) = check(tmp_path / "clicks.txt", SCHEMA).problems
    assert problem.endswith("; make one with: pslib convert")
