"""Conversion loses nothing: every row, null and value is counted again in plain Python."""

from __future__ import annotations

import collections
import csv
import gzip
import random
from math import isinf
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.data.convert import records
from pslib.data.convert.convert import convert_criteo, convert_csv, convert_libsvm
from pslib.data.convert.csv_criteo import CRITEO_DENSE, CRITEO_SPARSE
from pslib.data.convert.job import rejects_path
from pslib.data.synthetic.generator import GeneratorConfig, generate
from pslib.errors import ConfigurationError, DataError
from tests.support.data.real_data import real_data

CRITEO_NAMES = ["label", *CRITEO_DENSE, *CRITEO_SPARSE]


def criteo_line(label="1", *, ints=None, words=None) -> str:
    return "\t".join([label, *(ints or ["3"] * 13), *(words or ["68fd1e64"] * 26)])


def written(folder: Path, text: str | bytes, name="in.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows_of(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def rejects_of(out: Path) -> list[tuple[int, str, str]]:
    lines = rejects_path(out).read_text().splitlines()
    return [(int(line), reason, text) for line, reason, text in (line.split("\t", 2) for line in lines)]


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of a few lines, so that a small file crosses many borders."""
    monkeypatch.setattr(records, "PIECE_BYTES", 500)


def test_the_real_criteo_slice_comes_through_cell_by_cell(out):
    source = real_data("ctr_criteo_slices/criteo_first10000.tsv")
    report = convert_criteo(source, out)
    cells = [line.split("\t") for line in source.read_text().rstrip("\n").split("\n")]
    assert report.rows == report.source_lines == len(cells) == 10_000
    assert (report.rejected, report.rejects, report.blank_lines) == (0, None, 0)
    assert report.positives == sum(row[0] == "1" for row in cells) == 2_182
    assert sum(report.nulls.values()) == sum(cell == "" for row in cells for cell in row)
    table = pq.read_table(out)
    for place, name in enumerate(CRITEO_NAMES):
        kind = int if place < 14 else str
        assert table[name].to_pylist() == [kind(row[place]) if row[place] else None for row in cells]
    distinct = sum(len(set(table[name].drop_null().to_pylist())) for name in CRITEO_SPARSE)
    assert distinct == sum(len({row[place] for row in cells} - {""}) for place in range(14, 40))
    # The folder's README counts "missing" as one more value in each of the 12 fields that have it.
    assert distinct + sum(table[name].null_count > 0 for name in CRITEO_SPARSE) == 43_591


@pytest.mark.parametrize(("name", "rows"), [("a9a_train.dummy", 32_561), ("a9a_test.dummy", 16_281)])
def test_the_real_libsvm_files_come_through_id_by_id(name, rows, out):
    source = real_data(f"lr_a9a/{name}")
    report = convert_libsvm(source, out)
    expected = [line.split() for line in source.read_text().splitlines()]
    table = pq.read_table(out)
    assert table.schema.names == ["label", "ids"]
    assert report.rows == len(expected) == rows
    assert table["label"].to_pylist() == [int(line[0] == "+1") for line in expected]
    assert table["ids"].to_pylist() == [[int(token) for token in line[1:]] for line in expected]


def test_a_generated_file_written_as_text_and_converted_is_the_same(tmp_path, out, small_pieces):
    config = GeneratorConfig(train_rows=3_000, test_rows=1, seed=2)
    table = pq.read_table(generate(tmp_path / "g", config).train_path)
    lines = ["\t".join("" if v is None else str(v) for v in row.values()) for row in table.to_pylist()]
    report = convert_criteo(written(tmp_path, "\n".join(lines) + "\n"), out)
    assert pq.read_table(out).equals(table)
    assert report.nulls == {
        name: table[name].null_count for name in table.schema.names if table[name].null_count
    }


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""], ids=["newline", "windows", "no newline at the end"])
def test_line_endings_make_no_difference(tmp_path, out, ending):
    text = (ending or "\n").join([criteo_line("0"), criteo_line("1")]) + ending
    assert [row["label"] for row in rows_of(convert_criteo(written(tmp_path, text), out).out)] == [0, 1]
    assert rows_of(out)[0]["C26"] == "68fd1e64"


def test_bad_lines_go_to_the_rejects_with_number_reason_and_text(tmp_path, out, small_pieces):
    lines = [criteo_line(str(i % 2)) for i in range(60)]
    lines[3] = "1\t2\t3"
    lines[17] = criteo_line(ints=["x7", *["3"] * 12])
    lines[18] = criteo_line("2")
    lines[40] = criteo_line("")
    lines[41] = criteo_line(ints=["9" * 30, *["3"] * 12])
    lines[59] = criteo_line() + "\textra"
    report = convert_criteo(written(tmp_path, "\n".join(lines) + "\n"), out, rejects_max_share=0.2)
    assert report.rows == 54
    assert (report.rejected, report.rejects) == (6, rejects_path(out))
    found = rejects_of(out)
    assert sorted(found) == [
        (4, "expected 40 columns, got 3", lines[3]),
        (18, "column 'I1': expected int64, got invalid value 'x7'", lines[17]),
        (19, "column 'label': expected 0 or 1, got '2'", lines[18]),
        (41, "column 'label': expected 0 or 1, got ''", lines[40]),
        (42, f"column 'I1': expected int64, got invalid value '{'9' * 30}'", lines[41]),
        (60, "expected 40 columns, got 41", lines[59]),
    ]
    assert [row["label"] for row in rows_of(out)] == [
        i % 2 for i in range(60) if i + 1 not in {number for number, _, _ in found}
    ]
    assert any("line 4: expected 40 columns" in line for line in report.lines())


def test_a_reason_quotes_a_value_at_a_bounded_length_and_the_record_is_whole(tmp_path, out):
    words = "x" * 10_000
    source = written(tmp_path, f"label,user\n1,a\n{words},b\n1,c,{words}\n")
    report = convert_csv(source, out, rejects_max_share=1)
    (_, reason, record), (_, other, _) = rejects_of(out)
    assert record == f"{words},b"
    assert max(len(reason), len(other), *map(len, report.lines())) < records.REASON_CHARS + 30


def test_invalid_utf8_and_stray_carriage_returns_are_rejects_and_kept_byte_for_byte(tmp_path, out):
    good = criteo_line().encode()
    bad, stray = good[:-2] + b"\xff\xfe", good[:-3] + b"\r" + good[-2:]
    report = convert_criteo(
        written(tmp_path, b"\n".join([good, bad, stray, good, b""])), out, rejects_max_share=0.5
    )
    assert report.rows == 2
    kept = rejects_path(out).read_bytes().split(b"\n")
    assert [line.split(b"\t", 2)[0] for line in kept[:2]] == [b"2", b"3"]
    assert [line.split(b"\t", 2)[2] for line in kept[:2]] == [bad, stray]


def test_blank_lines_are_passed_over_and_counted(tmp_path, out):
    report = convert_criteo(written(tmp_path, f"\n{criteo_line()}\n\n  \n{criteo_line()}\n\n"), out)
    assert (report.rows, report.blank_lines, report.source_lines, report.rejected) == (2, 4, 6, 0)


def test_too_many_bad_lines_stop_the_run_and_leave_nothing(tmp_path, out):
    lines = [criteo_line()] * 999 + ["bad"] * 2
    with pytest.raises(DataError, match=r"2 bad .*1,001 lines.*line 1000: expected 40.*--rejects-max-share"):
        convert_criteo(written(tmp_path, "\n".join(lines) + "\n"), out)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_a_file_of_another_format_is_given_up_early(tmp_path, out):
    with pytest.raises(DataError, match=r"bad records in the first .* expected 40 columns, got 1"):
        convert_criteo(written(tmp_path, "a,b,c\n" * 300_000), out)
    assert not out.exists()


def test_one_bad_line_in_a_thousand_is_allowed(tmp_path, out):
    lines = ["bad", *[criteo_line()] * 999]
    assert convert_criteo(written(tmp_path, "\n".join(lines) + "\n"), out).rejected == 1


def test_an_existing_output_is_kept_unless_overwriting_is_asked_for(tmp_path, out):
    source = written(tmp_path, criteo_line() + "\n")
    out.write_text("precious")
    with pytest.raises(ConfigurationError, match="exists already"):
        convert_criteo(source, out)
    assert out.read_text() == "precious"
    rejects_path(out).write_text("of an earlier run")
    assert convert_criteo(source, out, overwrite=True).rows == 1
    assert not rejects_path(out).exists()


def test_a_failure_while_overwriting_keeps_the_old_file(tmp_path, out):
    out.write_text("precious")
    with pytest.raises(DataError):
        convert_criteo(written(tmp_path, "bad\n"), out, overwrite=True)
    assert out.read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected at least one record"),
        (b"\n\n", "expected at least one record"),
        (gzip.compress(criteo_line().encode() * 100)[:-20], "gzip data is cut or damaged"),
        (b"\x1f\x8b nonsense that is no gzip", "gzip data is cut or damaged"),
    ],
    ids=["empty", "blank", "cut gzip", "no gzip"],
)
def test_a_source_without_records_is_an_error(tmp_path, out, content, message):
    with pytest.raises(DataError, match=message):
        convert_criteo(written(tmp_path, content), out)
    assert not out.exists()


def test_a_missing_source_and_a_wrong_share_are_errors(tmp_path, out):
    with pytest.raises(DataError, match="no such file"):
        convert_criteo(tmp_path / "absent", out)
    with pytest.raises(DataError, match="expected a file, got a folder"):
        convert_criteo(tmp_path, out)
    with pytest.raises(ConfigurationError, match="rejects_max_share: expected a share from 0 to 1, got 2"):
        convert_criteo(written(tmp_path, criteo_line()), out, rejects_max_share=2)


def test_a_line_without_end_is_an_error_and_not_a_full_memory(tmp_path, out, monkeypatch):
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 1 << 20)
    with pytest.raises(DataError, match="line 1 is longer than 1 MiB"):
        convert_criteo(written(tmp_path, b"x" * (9 << 20)), out)


def test_progress_counts_lines(tmp_path, out, small_pieces):
    seen: list[int] = []
    convert_criteo(written(tmp_path, (criteo_line() + "\n") * 10), out, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 10


CSV = 'label,price,user,city\n1,0.5,"a,b",7\n0,,"say ""hi""",08\n-1,2,"",\ntrue,1e3,"two\nlines",9\n'


def test_csv_keeps_quotes_newlines_nulls_and_empty_strings_apart(tmp_path, out):
    report = convert_csv(written(tmp_path, CSV), out)
    assert [list(row.values()) for row in rows_of(out)] == [
        [1, 0.5, "a,b", "7"],
        [0, None, 'say "hi"', "08"],
        [0, 2.0, "", None],
        [1, 1000.0, "two\nlines", "9"],
    ]
    assert [field.name for field in report.schema.dense] == ["price"]
    assert [field.name for field in report.schema.sparse] == ["user", "city"]
    assert (report.nulls, report.source_lines) == ({"price": 1, "city": 1}, 6)


def test_csv_roles_may_be_given_and_further_columns_are_kept(tmp_path, out):
    report = convert_csv(
        written(tmp_path, "click\tid\tn\tnote\n1\t007\t5\tx\n0\t8\t\ty\n"), out, label="click", dense=["n"],
        sparse=["id"], integers=["id"], delimiter="\t",
    )  # fmt: skip
    assert rows_of(out) == [
        {"click": 1, "id": 7, "n": 5.0, "note": "x"},
        {"click": 0, "id": 8, "n": None, "note": "y"},
    ]
    assert report.schema.columns == ("click", "n", "id")


def test_names_may_come_from_a_generator(tmp_path, out):
    source = written(tmp_path, "label,x,u\n1,2,a\n0,3,b\n")
    report = convert_csv(source, out, dense=iter(["x"]), sparse=iter(["u"]))
    assert report.schema.columns == ("label", "x", "u")
    assert rows_of(out) == [{"label": 1, "x": 2.0, "u": "a"}, {"label": 0, "x": 3.0, "u": "b"}]


def test_whole_numbers_are_keys_unless_named_as_dense(tmp_path, out):
    source = written(tmp_path, "label,a,b\n1,5,5.5\n0,6,6\n")
    assert convert_csv(source, out).schema.columns == ("label", "b", "a")
    assert convert_csv(source, out, dense=["a"], overwrite=True).schema.columns == ("label", "a", "b")
    assert rows_of(out)[0] == {"label": 1, "a": 5.0, "b": "5.5"}


def test_all_wrong_names_come_at_once_with_suggestions(tmp_path, out):
    with pytest.raises(DataError) as caught:
        convert_csv(written(tmp_path, CSV), out, label="lable", dense=["prize"], sparse=["user"])
    assert len(caught.value.problems) == 2
    assert "no column 'lable'; did you mean 'label'?" in caught.value.problems[0]
    assert "no column 'prize'; did you mean 'price'?" in caught.value.problems[1]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "empty file"),
        ("label,a,a\n1,2,3\n", {}, "column 'a' is named 2 times"),
        ("label\n1\n", {}, "only one column"),
        ("label,a\n", {}, "expected at least one record"),
        ("label,a\n1,2\n", {"dense": ["a"], "sparse": ["a"]}, "choose one"),
        ("label,a\n1,2\n", {"delimiter": "ab"}, "delimiter: expected one ASCII character"),
    ],
)
def test_a_csv_that_makes_no_sense_is_refused(tmp_path, out, text, options, message):
    with pytest.raises(ConfigurationError, match=message):
        convert_csv(written(tmp_path, text), out, **options)
    assert not out.exists()


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path, out):
    assert convert_csv(written(tmp_path, b"\xef\xbb\xbflabel,a\n1,2\n"), out).rows == 1


def test_a_quote_that_never_closes_costs_one_line_and_not_the_rest(tmp_path, out, small_pieces, monkeypatch):
    monkeypatch.setattr(records, "QUOTED_BYTES_MAX", 2_000)
    lines = ["label,a", *[f"1,{i}" for i in range(1_500)]]
    lines[700] = '0,"open'
    lines[800] = '1,5" pipe'
    lines[1_499] = '0,"open too'
    report = convert_csv(written(tmp_path, "\n".join(lines)), out, rejects_max_share=0.01)
    assert report.rows == 1_498
    assert [(line, text) for line, _, text in rejects_of(out)] == [(701, '0,"open'), (1_500, '0,"open too')]
    assert rows_of(out)[798]["a"] == '5" pipe'


def test_a_real_csv_with_header_comes_through(out):
    source = real_data("ctr_criteo_slices/ycjuan_train.tiny.csv")
    report = convert_csv(source, out, label="Label", dense=CRITEO_DENSE)
    with source.open(newline="") as file:
        expected = list(csv.DictReader(file))
    table = pq.read_table(out)
    assert report.rows == len(expected)
    for name in expected[0]:
        kind = float if name in CRITEO_DENSE else int if name == "Label" else str
        assert table[name].to_pylist() == [kind(row[name]) if row[name] else None for row in expected]


words = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=6)
csv_rows = st.tuples(st.sampled_from("01"), words, st.floats(allow_nan=False), words)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(csv_rows, min_size=1, max_size=30),
    piece=st.integers(5, 300),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_whatever_python_writes_as_csv_is_read_back(tmp_path_factory, rows, piece, quoting):
    folder = tmp_path_factory.mktemp("csv")
    with (folder / "in.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator="\n")
        writer.writerows([["label", "a", "x", "b"], *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE_BYTES", piece)
        convert_csv(folder / "in.csv", folder / "out", dense=["x"], rejects_max_share=0)
    empty = "" if quoting == csv.QUOTE_ALL else None  # Python writes None and "" alike
    expected = [(int(label), a or empty, None if isinf(x) else x, b or empty) for label, a, x, b in rows]
    assert [tuple(row.values()) for row in rows_of(folder / "out")] == expected


def test_libsvm_values_that_are_all_one_make_no_column(tmp_path, out):
    convert_libsvm(written(tmp_path, "+1 3:1 5:1.0\n-1 2:1\n"), out)
    assert rows_of(out) == [{"label": 1, "ids": [3, 5]}, {"label": 0, "ids": [2]}]


def test_libsvm_values_are_kept_when_one_differs_however_late(tmp_path, out, small_pieces):
    lines = [f"{i % 2} {i}:1 {i + 1}:1" for i in range(200)] + ["1 7:0.25 8:-3e2", "0"]
    report = convert_libsvm(written(tmp_path, "\n".join(lines)), out)
    rows = rows_of(out)
    assert rows[0] == {"label": 0, "ids": [0, 1], "values": [1, 1]}
    assert rows[200:] == [
        {"label": 1, "ids": [7, 8], "values": [0.25, -300]},
        {"label": 0, "ids": [], "values": []},
    ]
    assert report.schema.columns == ("label", "ids")


def test_libsvm_ids_keep_all_their_bits_and_comments_are_no_features(tmp_path, out):
    big = 2**53 + 1
    convert_libsvm(written(tmp_path, f"# made by hand\n1 {big} {2**63 - 1} # the largest\n\n0 5\n"), out)
    assert rows_of(out) == [{"label": 1, "ids": [big, 2**63 - 1]}, {"label": 0, "ids": [5]}]


def test_libsvm_lines_that_are_none_are_rejected(tmp_path, out):
    lines = ["1 3 5"] * 5 + ["2 3", "1 qid:3", "1 3:x", "1 1:2:3", "1 3 5:1", "x", f"1 {2**64}"]
    report = convert_libsvm(written(tmp_path, "\n".join(lines)), out, rejects_max_share=0.9)
    assert report.rows == 5
    assert [line for line, _, _ in rejects_of(out)] == [6, 7, 8, 9, 10, 11, 12]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 400))
def test_good_lines_survive_any_mixture_with_bad_ones(tmp_path_factory, seed, piece):
    folder, dice = tmp_path_factory.mktemp("mix"), random.Random(seed)
    lines = [dice.choice([f"{i % 2} {i}", "", "bad", "1 x"]) for i in range(60)] + ["1 99"]
    good = [int(line.split()[1]) for line in lines if line[:1] in ("0", "1") and not line.endswith("x")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE_BYTES", piece)
        report = convert_libsvm(written(folder, "\n".join(lines)), folder / "out", rejects_max_share=1)
    counts = collections.Counter(lines)
    assert [row["ids"] for row in rows_of(folder / "out")] == [[number] for number in good]
    assert (report.rejected, report.blank_lines) == (counts["bad"] + counts["1 x"], counts[""])
