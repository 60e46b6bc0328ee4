"""Words for "no value": missing in a column of numbers, words in a column of words."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from pslib.data.convert.convert import convert_criteo, convert_csv, convert_jsonl
from pslib.data.text_values import MISSING
from tests.data.convert.test_convert import criteo_line, rejects_of, rows_of, written

WORDS = [word for word in MISSING if word]


def values(out: Path, name: str) -> list[object]:
    return [row[name] for row in rows_of(out)]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("pattern", ["{}", '"{}"'])
def test_a_word_for_a_missing_number_is_a_null_among_numbers(tmp_path, out, word, pattern):
    """Arrow writes nan, R NA, databases NULL; else all prices would be names, each of its own."""
    text = f"label,price\n1,{pattern.format(word)}\n0,2\n1,3.5\n"
    report = convert_csv(written(tmp_path, text), out)
    assert values(out, "price") == [None, 2.0, 3.5]
    assert ([field.name for field in report.schema.dense], report.schema.sparse) == (["price"], ())
    assert (report.nulls, report.rejected) == ({"price": 1}, 0)


@pytest.mark.parametrize("word", [*WORDS, "inf"])
def test_among_words_it_stays_a_word(tmp_path, out, word):
    """NA is Namibia, also beside a column in which it means that there is no price."""
    rows = [f"1,DE,1.5,{word}", f"0,{word},2.5,1.5", f'1,"{word}",NA,x']
    text = "".join(f"{row}\n" for row in ["label,country,price,note", *rows])
    report = convert_csv(written(tmp_path, text), out)
    assert values(out, "country") == ["DE", word, word]
    assert values(out, "note") == [word, "1.5", "x"]
    assert values(out, "price") == [1.5, 2.5, None]
    assert [field.name for field in report.schema.sparse] == ["country", "note"]
    assert report.nulls == {"price": 1}


def test_it_makes_no_column_one_of_numbers(tmp_path, out):
    """Without a fraction whole numbers stay keys, of which NA is one."""
    report = convert_csv(written(tmp_path, "label,id,none\n1,7,NA\n0,NA,nan\n"), out)
    assert (values(out, "id"), values(out, "none")) == (["7", "NA"], ["NA", "nan"])
    assert (report.schema.dense, report.nulls) == ((), {})


def test_other_words_do(tmp_path, out):
    """Only what is known to mean nothing is left out, letter by letter."""
    for number, word in enumerate(["na", "NaNa", " NA", "-", "?", "none", "nil"]):
        report = convert_csv(written(tmp_path, f"label,x\n1,{word}\n0,1.5\n"), out, overwrite=number > 0)
        assert (report.schema.dense, values(out, "x")) == ((), [word, "1.5"])


@pytest.mark.parametrize("dense", [None, ["x"]])
@pytest.mark.parametrize("word", ["inf", "-Infinity", "+INF", " Inf"])
def test_an_infinite_number_among_numbers_is_a_null_and_told(tmp_path, out, word, dense):
    """No training takes a dense infinity: the file would be refused for one price."""
    text = f"label,x,u\n1,{word},a\n0,1.5,b\n1,{word},c\n0,,d\n"
    report = convert_csv(written(tmp_path, text), out, dense=dense)
    assert [field.name for field in report.schema.dense] == ["x"]
    assert values(out, "x") == [None, 1.5, None, None]
    assert (report.nulls, report.infinite, report.rejected) == ({"x": 3}, {"x": 2}, 0)
    assert "missing values: 3 in 1 column, kept as nulls" in report.lines()
    assert "infinite numbers: 2 among these, which became nulls: x (2)" in report.lines()


def test_what_convert_makes_of_infinite_numbers_is_a_file_that_passes_the_check(tmp_path, out, capsys):
    rows = [f"{n % 2},{'inf' if n == 5 else n + 0.5},{n % 3}" for n in range(20)]
    source = written(tmp_path, "\n".join(["label,x,u", *rows]))
    assert main(["convert", "csv", str(source), str(out), "--dense", "x"]) == 0
    assert "infinite numbers: 1 among these, which became nulls: x (1)\n" in capsys.readouterr().out
    assert main(["describe", str(out)]) == 0
    assert "infinite" not in capsys.readouterr().out


def test_in_json_lines_they_are_nulls_where_they_are_dense_and_stay_where_nothing_reads_them(tmp_path, out):
    text = '{"label":1,"x":1.5,"y":Infinity,"u":1}\n{"label":0,"x":-Infinity,"y":2.5,"u":2}\n'
    report = convert_jsonl(written(tmp_path, text), out, dense=["x"], sparse=["u"])
    assert (values(out, "x"), values(out, "y")) == ([1.5, None], [float("inf"), 2.5])
    assert (report.nulls, report.infinite) == ({"x": 1}, {"x": 1})
    assert convert_jsonl(written(tmp_path, text), out, overwrite=True).infinite == {"x": 1, "y": 1}


def test_columns_that_are_named_as_numbers_read_so_too(tmp_path, out):
    text = "label,n,id,s\n1,NA,null,NA\n0,3,4,x\n"
    convert_csv(written(tmp_path, text), out, dense=["n"], sparse=["id", "s"], integers=["id"])
    assert [tuple(row.values()) for row in rows_of(out)] == [(1, None, None, "NA"), (0, 3.0, 4, "x")]
    assert pq.read_schema(out).field("id").type == pa.int64()


def test_late_words_are_missing_too_and_what_is_none_of_them_is_set_aside(tmp_path, out):
    lines = ["label,x,y", *["1,1.5,NA"] * 12_000, "0,NA,NA", "0,nan,a", "0,much,NA", '0,"",NA', "2,NA,NA"]
    report = convert_csv(written(tmp_path, "\n".join(lines)), out, rejects_max_share=0.01)
    assert report.nulls == {"x": 3}
    assert rows_of(out)[12_000:] == [
        {"label": 0, "x": None, "y": "NA"},
        {"label": 0, "x": None, "y": "a"},
        {"label": 0, "x": None, "y": "NA"},
    ]
    assert [(line, reason) for line, reason, _ in rejects_of(out)] == [
        (12_004, "column 'x': expected double, got invalid value 'much'"),
        (12_006, "column 'label': expected 0 or 1, got '2'"),
    ]


def test_large_times_beside_them_are_held_against_the_whole_numbers_that_stand_there(tmp_path, out):
    text = "label,t\n1,1700000000000000000\n0,NA\n1,9007199254740993\n"
    report = convert_csv(written(tmp_path, text), out, dense=["t"], rejects_max_share=1)
    assert values(out, "t") == [1.7e18, None]
    assert report.rejected == 1


def test_a_label_is_never_missing(tmp_path, out):
    convert_csv(written(tmp_path, "label,x\nNA,1.5\n1,NA\n"), out, rejects_max_share=1)
    assert [reason for _, reason, _ in rejects_of(out)] == ["column 'label': expected 0 or 1, got 'NA'"]


def test_a_click_log_reads_so_too(tmp_path, out):
    cells = criteo_line().split("\t")
    cells[1], cells[14] = "NULL", "NULL"
    convert_criteo(written(tmp_path, "\t".join(cells) + "\n"), out)
    assert (values(out, "I1"), values(out, "C1")) == ([None], ["NULL"])


def test_they_are_those_that_pandas_reads_so():
    parsers = pytest.importorskip("pandas._libs.parsers")
    assert {*MISSING} == parsers.STR_NA_VALUES
