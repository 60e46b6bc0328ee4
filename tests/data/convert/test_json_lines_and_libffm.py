"""JSON lines and libffm become Parquet and nothing is lost: compared with plain Python, value by value."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.cli.main import main
from pslib.data.convert.convert import convert_csv, convert_jsonl, convert_libffm
from pslib.data.convert.job import rejects_path
from pslib.data.convert.records import Piece
from pslib.errors import DataError
from pslib.schema import DenseField, RaggedField, SparseField
from tests.data.convert.test_convert import rejects_of, rows_of, written


def lines(*records: object) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


# --- JSON lines


def test_columns_get_the_types_that_the_first_records_show(tmp_path, out):
    full = {"user": 2**62 + 1, "city": "Z\u00fcrich", "tags": ["a", "b"], "seen": [1], "new": True}
    bare = {"user": None, "city": "", "tags": [], "seen": None, "new": False}
    text = lines(
        {"label": 1, "price": 3, **full}, {"label": 0, "price": 2.5, **bare}, {"label": 0, "user": 5}
    )
    report = convert_jsonl(written(tmp_path, text), out)
    assert rows_of(out) == [
        {"label": 1, "price": 3.0, **full},
        {"label": 0, "price": 2.5, **bare},
        {"label": 0, "price": None, **dict.fromkeys(full), "user": 5},
    ]
    assert report.schema.dense == (DenseField("price"),)
    assert report.schema.sparse == (SparseField("user"), SparseField("city"), SparseField("new"))
    assert report.schema.ragged == (RaggedField("tags"), RaggedField("seen"))
    assert pq.read_schema(out).field("label").type == pa.int8()


@pytest.mark.parametrize("labels", [[1, 0], [True, False], ["1", "-1"], [1.0, 0.0]])
def test_a_label_may_be_a_number_a_truth_or_a_text(tmp_path, out, labels):
    text = lines(*({"click": label, "x": 1} for label in labels))
    convert_jsonl(written(tmp_path, text), out, label="click")
    assert [row["click"] for row in rows_of(out)] == [1, 0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"label": 2, "x": 1}', "column 'label': expected 0 or 1, got '2'"),
        ('{"label": 1, "x": "one"}', "column 'x': expected a number, got a string"),
        ('{"label": 1, "x": 1.5}', "expected int64, got 1.5"),
        ('{"label": 1, "x": 1, "y": 2}', "a column that none of the first records has; they have label, x"),
        ('{"label": 1, "x": ', "Invalid value."),
        ("[1, 2]", "expected an object, got an array"),
        ('{"label": 1, "x": 1}{"label": 0, "x": 2}', "read as 2 records: a stray carriage return or quote"),
        ('{"x": 1}', "column 'label': expected 0 or 1, got ''"),
    ],
)
def test_a_bad_record_is_set_aside_with_its_line_and_the_others_stay(tmp_path, out, line, reason):
    good = lines(*({"label": number % 2, "x": number} for number in range(20_000)))
    report = convert_jsonl(written(tmp_path, good + line + "\n" + good), out)
    assert (report.rows, report.rejected) == (40_000, 1)
    assert rejects_of(out) == [(20_001, reason, line)]


TWO = "read as 2 records: a stray carriage return or quote"


@pytest.mark.parametrize(
    ("convert", "text", "rejects"),
    [
        (
            convert_jsonl,
            '{"label":1,"x":1}{"label":0,"x":2}\n\n{"label":2,"x":3}\n{"label":1,"x":4}\n',
            f'1\t{TWO}\t{{"label":1,"x":1}}{{"label":0,"x":2}}\n'
            "3\tcolumn 'label': expected 0 or 1, got '2'\t{\"label\":2,\"x\":3}\n",
        ),
        (
            convert_csv,
            "label,x\n1,1\r0,2\n\n2,3\n1,4\n",
            f"2\t{TWO}\t1,1\r0,2\n4\tcolumn 'label': expected 0 or 1, got '2'\t2,3\n",
        ),
    ],
    ids=["json", "csv"],
)
def test_two_records_in_a_line_are_seen_where_another_line_is_blank(tmp_path, out, convert, text, rejects):
    report = convert(written(tmp_path, text), out, rejects_max_share=1)
    assert [(row["label"], int(row["x"])) for row in rows_of(out)] == [(1, 4)]
    assert (report.blank_lines, report.rejected) == (1, 2)
    assert rejects_path(out).read_bytes() == rejects.encode()


@pytest.mark.parametrize(
    "other", [b"caf\xe9", b"\xed\xa0\x80", b"\xc0\x80"], ids=["latin", "surrogate", "long"]
)
def test_a_text_that_is_no_utf8_is_set_aside(tmp_path, out, other):
    good = lines(
        *({"label": number % 2, "x": "Z\u00fcrich \u6771\u4eac"} for number in range(2_000))
    ).encode()
    line = b'{"label": 1, "x": "%b"}' % other
    report = convert_jsonl(written(tmp_path, good + line + b"\n" + good), out)
    assert (report.rows, report.rejected) == (4_000, 1)
    assert rejects_path(out).read_bytes() == b"2001\tcolumn 'x': expected UTF-8, got other bytes\t%b\n" % line
    pq.read_table(out).validate(full=True)


@pytest.mark.parametrize("line", ['{"label":1,"x":%b}', "%b"])
def test_a_line_that_is_nested_too_deep_is_set_aside(tmp_path, out, line):
    good, deep = lines({"label": 1, "x": 1}) * 2_000, line.replace("%b", "[" * 20_000 + "]" * 20_000)
    report = convert_jsonl(written(tmp_path, good + deep + "\n" + good), out)
    assert (report.rows, report.rejected) == (4_000, 1)
    assert rejects_of(out)[0][0] == 2_001


LARGE = [str(2**53), str(-(2**62)), "9007199254740993.5", "1e300", "1" + "0" * 22, "-9007199254740994"]
OTHER = [str(2**53 + 1), str(-(2**63) + 1), "9" * 30]


@pytest.mark.parametrize(
    ("convert", "dense", "large", "other"),
    [
        (convert_jsonl, None, [*LARGE, "NaN", "Infinity", "-Infinity"], OTHER),
        (convert_jsonl, ["x"], [*LARGE, "NaN", "Infinity", "-Infinity"], OTHER),
        (convert_csv, None, [*LARGE, "inf", " -Infinity", "+INF"], [*OTHER, "1e999"]),
        (convert_csv, ["x"], [*LARGE, "inf", " -Infinity", "+INF"], [*OTHER, "1e999", "-1e999", "9" * 400]),
    ],
)
def test_a_number_that_float64_would_change_is_set_aside(tmp_path, out, convert, dense, large, other):
    cells = ["1.5", *large, *other, "2.5", "2.25"]
    if convert is convert_csv:
        start, pattern = "label,x\n", "{label},{cell}\n"
    else:
        start, pattern = "", '{{"label": {label}, "x": {cell}}}\n'
    text = "".join(pattern.format(label=1, cell=cell) for cell in cells)
    text += pattern.format(label=2, cell=OTHER[0])
    convert(written(tmp_path, start + text), out, dense=dense, rejects_max_share=1)
    assert [repr(row["x"]) for row in rows_of(out)] == [
        repr(None if "inf" in cell.lower() else float(cell)) for cell in cells if cell not in other
    ]
    first = 1 + len(start.splitlines())
    said = "column 'x': expected a number that float64 holds, got "
    assert [(line, reason) for line, reason, _ in rejects_of(out)] == [
        *((cells.index(cell) + first, said + cell) for cell in other),
        (len(cells) + first, "column 'label': expected 0 or 1, got '2'"),
    ]


BROKEN = ['{"label":0,"x":70,', '"y":"}"}', '{"label":0,"x":80}{"label":1,"x":90}']


@pytest.mark.parametrize("ending", ["\n", "\r\n", " \t\n"])
@pytest.mark.parametrize("between", [0, 30_000])
def test_an_object_of_two_lines_does_not_make_up_for_a_line_of_two_objects(tmp_path, out, ending, between):
    good = '{"label":1,"x":1,"y":"}{"}'
    found = [good, *BROKEN[:2], *[good] * between, *BROKEN[2:], good, *BROKEN, good]
    text = "".join(line + ending for line in found)
    report = convert_jsonl(written(tmp_path, text), out, rejects_max_share=1)
    assert [row["x"] for row in rows_of(out)] == [1] * (3 + between) == [1] * report.rows
    numbers = [number for number, line in enumerate(found, 1) if line != good]
    assert [(line, kept.strip()) for line, _, kept in rejects_of(out)] == [
        (number, found[number - 1]) for number in numbers
    ]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([{"label": 1, "x": 1}, {"label": 1, "x": "a"}], "column 'x': expected one type, got int, str"),
        ([{"label": 1, "x": {"y": 1}}], "column 'x': expected a value or a list of values, got an object"),
        ([{"label": 1, "x": [1, "a"]}], "column 'x': expected lists of int or str, got int, str"),
        ([{"label": 1, "x": [1]}, {"label": 1, "x": 1}], "column 'x': expected one type, got lists and int"),
        ([{"labe": 1, "x": 1}], "no column 'label'; did you mean 'labe'?"),
        ([{"label": [1], "x": 1}], "column 'label': expected 0 or 1, got lists; choose another"),
        ([{"label": 1, "": 1}], "column '': expected a name, got none"),
        ([7], "expected a JSON object a line, found none in the first 10,000"),
    ],
)
def test_columns_that_can_not_be_are_told_before_anything_is_written(tmp_path, out, records, said):
    with pytest.raises(DataError) as error:
        convert_jsonl(written(tmp_path, lines(*records)), out)
    assert said in str(error.value)
    assert not out.exists()


def test_columns_can_be_chosen(tmp_path, out):
    source = written(tmp_path, lines({"label": 1, "a": 1, "b": 2, "c": 0.5, "d": "x"}))
    report = convert_jsonl(source, out, dense=iter(["a"]), sparse=iter(["b"]))
    assert report.schema.dense == (DenseField("a"),)
    assert rows_of(out) == [{"label": 1, "a": 1.0, "b": 2, "c": 0.5, "d": "x"}]
    assert report.schema.sparse == (SparseField("b"),)
    with pytest.raises(DataError, match="column 'c' has fractions and can't be sparse"):
        convert_jsonl(source, out, sparse=["c"], overwrite=True)


whole = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
texts = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
few = st.lists(st.integers(0, 9), max_size=3)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), whole, texts, few), min_size=1))
def test_every_value_comes_back_as_it_was(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("json")
    records = [dict(zip(("label", "n", "t", "l"), record, strict=True)) for record in found]
    convert_jsonl(written(folder, lines(*records)), folder / "out.parquet")
    assert rows_of(folder / "out.parquet") == [record | {"label": int(record["label"])} for record in records]


# --- libffm


def test_fields_become_columns_and_nothing_is_lost(tmp_path, out):
    text = "1 0:5:1 1:7:0.5 2:1:1 2:2:1\n0 0:6:1 2:3:1 # a comment\n\n-1 1:7:2 0:9:1\n"
    report = convert_libffm(written(tmp_path, text), out)
    assert rows_of(out) == [
        {"label": 1, "f0": 5, "f1": 7, "f1_value": 0.5, "f2": [1, 2]},
        {"label": 0, "f0": 6, "f1": None, "f1_value": None, "f2": [3]},
        {"label": 0, "f0": 9, "f1": 7, "f1_value": 2.0, "f2": []},
    ]
    assert report.schema.dense == (DenseField("f1_value"),)
    assert report.schema.sparse == (SparseField("f0"),)
    assert report.schema.ragged == (RaggedField("f2", pooling="sum"),)


def test_a_field_that_only_late_records_have_is_a_column_too(tmp_path, out):
    text = "1 0:5:1\n" * 600_000 + "0 0:5:1 9:1:1\n"  # more than one piece
    report = convert_libffm(written(tmp_path, text), out)
    assert report.rows == 600_001
    assert pq.read_table(out).slice(600_000).to_pylist() == [{"label": 0, "f0": 5, "f9": 1}]


@pytest.mark.parametrize("line", ["1 0:5", "1 0:5:1:1", "1 x:5:1", "1 -1:5:1", "1 10000:5:1", "2 0:5:1"])
def test_a_bad_line_is_set_aside(tmp_path, out, line):
    good = "1 0:5:1\n" * 2000
    report = convert_libffm(written(tmp_path, good + line + "\n"), out)
    assert (report.rows, report.rejected) == (2000, 1)
    assert rejects_of(out)[0][0] == 2001
    assert set(rows_of(out)[0]) == {"label", "f0"}


def test_a_file_of_something_else_is_refused_in_one_line(tmp_path, out):
    with pytest.raises(DataError, match="bad records in the first"):
        convert_libffm(written(tmp_path, "1 5:1 7:1\n" * 5000), out)
    assert not out.exists()


entries = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-(2**40), 2**40), st.sampled_from([1, 0.5])),
    min_size=1,
    max_size=5,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), entries), min_size=1, max_size=8))
def test_every_entry_comes_back_under_its_field(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("ffm")
    rows = [f"{label} " + " ".join(f"{f}:{i}:{v}" for f, i, v in some) + "\n" for label, some in found]
    convert_libffm(written(folder, "".join(rows)), folder / "out.parquet")
    for row, (label, some) in zip(rows_of(folder / "out.parquet"), found, strict=True):
        assert row["label"] == label
        for field in range(4):
            indexes = [index for f, index, _ in some if f == field]
            got = row.get(f"f{field}")
            assert (got if isinstance(got, list) else [] if got is None else [got]) == indexes


def test_the_command_line_knows_both(tmp_path, out, capsys):
    assert main(["convert", "libffm", str(written(tmp_path, "1 0:5:1\n")), str(out)]) == 0
    source = written(tmp_path, lines({"y": 1, "a": 2.5}), "in.jsonl")
    assert main(["convert", "jsonl", str(source), str(out), "--label", "y", "--overwrite"]) == 0
    assert "dense: [a]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PAR1....PAR1", "this is a Parquet file already"),
        (b"PK\x03\x04....", "expected text, got a zip archive; unpack it"),
        ("label,a,b\n1,x,y\n".encode("utf-16"), "expected UTF-8, got UTF-16; rewrite it"),
        (b"label,a,b\r1,x,y\r", "line 1: .* lines end with CR alone"),
        (b",label,a\n0,1,x\n", "line 1: column 1 has no name; write one into the header"),
    ],
)
def test_a_csv_that_is_something_else_says_what_it_is(tmp_path, out, content, said):
    with pytest.raises(DataError, match=said):
        convert_csv(written(tmp_path, content), out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["PAR1", "BZhour", "ORC", "ARROW1", "Obj", "]0"])
def test_a_header_that_begins_like_another_file_is_a_header(tmp_path, out, name):
    convert_csv(written(tmp_path, f"{name},label,b\nx,1,y\n"), out)
    assert pq.read_table(out).column_names == [name, "label", "b"]


@pytest.mark.parametrize(
    ("raw", "comment", "may"),
    [
        (b"a\nb\n", None, False),
        (b"\na\n", None, True),
        (b"a\n\n", None, True),
        (b"a\n \nb\n", None, True),
        (b"a\n# b\n", None, False),
        (b"a\n# b\n", b"#", True),
        (b"# a\nb\n", b"#", True),
        (b"a # b\nb\n", b"#", False),
    ],
)
def test_a_piece_knows_by_how_lines_begin_whether_one_may_be_blank(raw, comment, may):
    piece = Piece(raw, 1, raw.count(b"\n"), comment=comment)
    assert piece.may_have_blank == may
    assert may or len(piece.split()) == piece.lines
