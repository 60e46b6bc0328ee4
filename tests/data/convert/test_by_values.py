"""The type of a column of text is that of all of its values, and no id is changed by it."""

from __future__ import annotations

import csv
import gzip
import json
from datetime import UTC, date, datetime
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.data.convert import by_values, records
from pslib.data.convert.by_values import convert_by_values
from pslib.data.convert.convert import convert_csv, convert_jsonl
from pslib.data.convert.job import Conversion, rejects_path
from pslib.errors import ConfigurationError, DataError
from tests.data.convert.test_convert import rejects_of, written


def converted(folder: Path, text: str | bytes, form: str = "csv", **options: Any) -> pa.Table:
    source = written(folder, text)
    run = Conversion(source, folder / "out", overwrite=True, share_max=0.001, progress=None)
    convert_by_values(run, form, **options)
    return pq.read_table(folder / "out")


def type_of(folder: Path, *cells: str) -> str:
    text = "a,b\n" + "".join(f"{cell},-\n" for cell in cells)
    return str(converted(folder, text).schema.field("a").type)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["7", "-7", "0", str(2**63 - 1)], "int64"),
        (["7", "", r"\N"], "int64"),
        (['"7"', '""'], "int64"),
        (["7", "007"], "string"),
        (["7", "+7"], "string"),
        (["7", " 8"], "string"),
        (["7", "A12"], "string"),
        (["7", "NA"], "string"),
        ([str(2**63)], "string"),
        (["7", "0.5"], "double"),
        (["7.0", ""], "double"),
        (["0.5", "NA", "nan", "inf"], "double"),
        (["0.5", " 1e-3 "], "double"),
        (["12e5", "7e3"], "string"),
        (["0.5", "007"], "string"),
        (["0.5", "1e999"], "string"),
        (["0.5", str(2**53 + 1)], "string"),
        (["0.5", "1,5".replace(",", " ")], "string"),
        (["true", "False", "TRUE", ""], "bool"),
        (["true", "yes"], "string"),
        (["2024-05-01", "1999-12-31", ""], "date32[day]"),
        (["2024-05-01", "2024-05-01 12:30"], "timestamp[us]"),
        (["2024-05-01T12:30:01.25"], "timestamp[us]"),
        (["2024-05-01T12:30:00Z", "2024-05-01 12:30:00+02:00"], "timestamp[us, tz=UTC]"),
        (["2024-05-01T12:30:00Z", "2024-05-01T12:30:00"], "string"),
        (["2024-02-30"], "string"),
        (["20240501"], "int64"),
        (["", r"\N"], "null"),
        (['""', ""], "string"),
    ],
)
def test_a_column_is_of_the_first_type_that_all_of_its_values_are_of(
    tmp_path: Path, cells: list[str], kind: str
) -> None:
    assert type_of(tmp_path, *cells) == kind


def test_values_come_through(tmp_path: Path) -> None:
    text = (
        "id,zip,price,seen,at,flag,text\n"
        '1,007,.5,2024-05-01,2024-05-01T14:30:00+02:00,True,"a ""b"",\nc"\n'
        '-2,+7,-inf,2024-05-02,2024-05-01T12:30:00Z,false,""\n'
        "3,A,NaN,,,,\n"
    )
    assert converted(tmp_path, text).to_pylist() == [
        {"id": 1, "zip": "007", "price": 0.5, "seen": date(2024, 5, 1), "flag": True,
         "at": datetime(2024, 5, 1, 12, 30, tzinfo=UTC), "text": 'a "b",\nc'},
        {"id": -2, "zip": "+7", "price": -inf, "seen": date(2024, 5, 2), "flag": False,
         "at": datetime(2024, 5, 1, 12, 30, tzinfo=UTC), "text": ""},
        {"id": 3, "zip": "A", "price": None, "seen": None, "flag": None, "at": None, "text": None},
    ]  # fmt: skip


@pytest.mark.parametrize("piece", [40, 1000])
def test_one_late_value_decides_for_all(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PIECE_BYTES", piece)
    assert type_of(tmp_path, *["7"] * 300, "A12", *["8"] * 300) == "string"
    assert type_of(tmp_path, *["7"] * 300, "0.5") == "double"
    assert type_of(tmp_path, *["0.5"] * 300, "NA", "oops", "1") == "string"
    message = pq.read_schema(tmp_path / "out").field("a").metadata[b"pslib.no_number"]
    assert message == b"'oops' in row 301 (from 0)"


@pytest.mark.parametrize(
    ("value", "kind"),
    [("2024-05-01", "date32[day]"), ("2024-05-01 12:30", "timestamp[us]"), ("true", "bool")],
)
def test_values_that_come_after_many_empty_ones_decide(
    tmp_path: Path, value: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PIECE_BYTES", 40)
    assert type_of(tmp_path, *[""] * 300, value) == kind
    assert type_of(tmp_path, *[r"\N"] * 300, value) == kind


def test_a_value_is_named_as_no_number_though_many_empty_ones_come_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PIECE_BYTES", 40)
    converted(tmp_path, "a,b\n" + ",-\n" * 300 + "oops,-\n", texts=["a"])
    message = pq.read_schema(tmp_path / "out").field("a").metadata[b"pslib.no_number"]
    assert message == b"'oops' in row 300 (from 0)"


cells = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=False).map(repr),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1, max_size=5),
    st.sampled_from(["007", "+7", "true", "2024-05-01", "NA", "inf", "1e5", "-0", "7."]),
)


@settings(max_examples=80, deadline=None)
@given(values=st.lists(cells, min_size=1, max_size=20), piece=st.integers(10, 200))
def test_an_id_is_known_from_what_is_stored(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], piece: int
) -> None:
    folder = tmp_path_factory.mktemp("ids")
    with (folder / "in.txt").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
            [["a", "b"], *([value, "x"] for value in values)]
        )
    run = Conversion(folder / "in.txt", folder / "out", overwrite=True, share_max=0, progress=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE_BYTES", piece)
        convert_by_values(run, "csv", delimiter=",")
    column = pq.read_table(folder / "out")["a"]
    if pa.types.is_integer(column.type) or pa.types.is_string(column.type):
        assert column.cast(pa.string()).to_pylist() == [None if one == r"\N" else one for one in values]
    if pa.types.is_floating(column.type):
        numbers = [None if one in ("NA",) else float(one) for one in values]
        assert column.to_pylist() == numbers


@pytest.mark.parametrize(
    ("header", "line"), [("a,b", "1,x;y"), ("a\tb", "1\tx,y"), ("a;b", "1;x,y"), ("a|b", "1|x,y")]
)
def test_the_header_tells_the_delimiter(tmp_path: Path, header: str, line: str) -> None:
    assert converted(tmp_path, f"{header}\n{line}\n").to_pylist() == [{"a": 1, "b": line[2:]}]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (",a,b\n0,1,x\n", "1"),
        ("a,b,\n1,x,\n", "3"),
        ("\ta\t\tb\n0\t1\t2\tx\n", "1, 3"),
        ("\n,a,b\n0,1,x\n", "1"),
    ],
)
def test_a_column_without_a_name_is_left_out_with_the_reason(tmp_path: Path, text: str, places: str) -> None:
    table = converted(tmp_path, text)
    assert table.to_pylist() == [{"a": 1, "b": "x"}]
    left_out = json.loads(table.schema.metadata[b"pslib.left_out"])
    assert left_out == {"": f"expected a name in the header, got none in place {places}"}


def test_the_index_that_pandas_writes_is_left_out(tmp_path: Path) -> None:
    text = "\tclick\n0\t1\n1\t0\n"
    assert converted(tmp_path, text).to_pydict() == {"click": [1, 0]}


def test_a_header_without_any_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected names of columns in the first line, got none"):
        converted(tmp_path, ",,\n1,2,3\n")


def test_a_single_column_is_a_table_too(tmp_path: Path) -> None:
    assert converted(tmp_path, "item\n7\n8\n").to_pydict() == {"item": [7, 8]}


def test_a_header_alone_is_an_empty_table_where_it_may_be(tmp_path: Path) -> None:
    assert converted(tmp_path, "a,b\n", may_be_empty=True).schema.names == ["a", "b"]
    with pytest.raises(DataError, match="expected at least one record, got none"):
        converted(tmp_path, "a,b\n")


def test_bad_records_are_rejects_and_too_many_are_refused(tmp_path: Path) -> None:
    lines = ["a,b", *["1,2"] * 1500]
    lines[700] = "1"
    assert converted(tmp_path, "\n".join(lines)).num_rows == 1499
    assert rejects_of(tmp_path / "out") == [(701, "expected 2 columns, got 1", "1")]
    lines[800] = "1,2,3"
    with pytest.raises(
        DataError, match=r"2 bad records in the first 1,501 lines, more than the share of 0.001"
    ):
        converted(tmp_path, "\n".join(lines))
    assert not (tmp_path / "out").exists() or rejects_path(tmp_path / "out").exists()


def test_row_groups_end_by_rows_or_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PIECE_BYTES", 100)
    monkeypatch.setattr(by_values, "GROUP_ROWS", 40)
    text = "a,b\n" + "1,2\n" * 100

    def groups() -> list[int]:
        converted(tmp_path, text)
        metadata = pq.read_metadata(tmp_path / "out")
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    assert groups() == [40, 40, 20]
    monkeypatch.setattr(by_values, "GROUP_BYTES", 1)
    assert groups() == [24, 25, 25, 25, 1]


JSON = (
    '{"y": 1, "user": "7", "n": 3, "x": 1, "at": "2024-05-01", "tags": ["a"], "ids": [1], "who": {"a": 1}}\n'
    '{"y": 0, "user": "A", "x": 0.5, "at": null, "tags": [], "ids": null, "who": null}\n'
)


def test_json_has_its_own_types_times_are_read_and_what_has_none_is_left_out(tmp_path: Path) -> None:
    table = converted(tmp_path, gzip.compress(JSON.encode()), "jsonl")
    assert table.to_pylist() == [
        {"y": 1, "user": "7", "n": 3, "x": 1.0, "at": date(2024, 5, 1), "tags": ["a"], "ids": [1]},
        {"y": 0, "user": "A", "n": None, "x": 0.5, "at": None, "tags": [], "ids": None},
    ]
    left_out = json.loads(table.schema.metadata[b"pslib.left_out"])
    assert left_out == {
        "who": "expected a value or a list of values, got an object; make columns of what is in it"
    }


def test_a_member_that_comes_late_is_a_column(tmp_path: Path) -> None:
    text = '{"a": 1}\n' * 11_000 + '{"a": 2, "late": true}\n'
    table = converted(tmp_path, text, "jsonl")
    assert (table["late"].null_count, table["late"][-1].as_py()) == (11_000, True)


def test_json_without_an_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a JSON object with values a line, found none"):
        converted(tmp_path, '[{"a": 1}]\n', "jsonl")


def test_convert_without_a_label_is_the_same_conversion(tmp_path: Path) -> None:
    text = "user,price,zip\n7,0.5,007\n8,1,1\n"
    expected = converted(tmp_path, text)
    report = convert_csv(written(tmp_path, text), tmp_path / "mine", label=None)
    assert pq.read_table(tmp_path / "mine").equals(expected)
    assert report.lines()[1] == "columns: user int64, price double, zip string"
    assert report.schema is None
    report = convert_jsonl(written(tmp_path, JSON), tmp_path / "json", label=None)
    assert any("note: column 'who' is left out: expected a value" in line for line in report.lines())
    convert_csv(written(tmp_path, text), tmp_path / "mine", label=None, overwrite=True, sparse=["price"])
    assert pq.read_table(tmp_path / "mine")["price"].to_pylist() == ["0.5", "1"]
    with pytest.raises(DataError, match="no column 'prise'; there is user, price, zip"):
        convert_csv(written(tmp_path, text), tmp_path / "mine", label=None, overwrite=True, sparse=["prise"])
    with pytest.raises(
        ConfigurationError, match="without a label all columns are typed by their values: name only sparse"
    ):
        convert_csv(written(tmp_path, text), tmp_path / "mine", label=None, overwrite=True, dense=["price"])
