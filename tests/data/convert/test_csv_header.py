"""A CSV without a header is told as such, and names that look like values stay names."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

import pslib
from launch.cli.main import main
from pslib.data.arrow_data import open_data
from pslib.data.convert.convert import convert_csv
from pslib.data.convert.csv_header import delimiter_of, header_of
from pslib.data.convert.records import pieces
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.errors import ConfigurationError, DataError
from tests.data.convert.test_convert import written

ROWS = 300
RANDOM = random.Random(3)
FILMS = ("Amélie", "film 45", "Heat", '"Up, 2"', "Alien")


def below(line: Callable[[int], str]) -> str:
    return "".join(f"{line(number)}\n" for number in range(ROWS))


def number(most: int) -> int:
    return RANDOM.randint(0, most)


def click(n: int) -> str:
    city, price = RANDOM.choice(("Zürich", "Bern", "")), f"{number(999) / 100}"
    return (
        f"2026-03-01 08:{n // 60:02}:{n % 60:02},u{number(90)},{RANDOM.choice(FILMS)},{city},{price},{n % 2}"
    )


def criteo(n: int) -> str:
    hashes = "\t".join(f"{RANDOM.getrandbits(32):08x}" for _ in range(26))
    return "\t".join([str(n % 2), *(str(number(900)) for _ in range(13)), hashes])


RECORDS = {
    "clicks": below(click),
    "Criteo's log": below(criteo),
    "ratings": below(lambda n: f"{number(900)}\t{number(1600)}\t{number(5)}\t{880_000_000 + number(10**7)}"),
    "decimal commas": below(lambda n: f"u{n % 9};{number(9)},{number(9)}5;{n % 2}"),
    "German dates": below(lambda n: f"{1 + n % 28:02}.03.2026 08:{n % 60:02};Zug;ja"),
    "names that come again": below(lambda n: f"{FILMS[n % 5]},{('Bern', 'Zug')[n % 2]}"),
    "one column": below(lambda n: str(number(99))),
    "three rows": "u1,5,1\nu2,6,0\nu3,5,0\n",
    "missing values first": ",\\N,5\n" + below(lambda n: f"u{n},{n},{number(9)}"),
}
HEADERS = {
    "clicks": "time,user,item,city,price,click\n" + below(click),
    "ids": "user,item\n" + below(lambda n: f"{number(99)},{number(99)}"),
    "numbers above texts": "1,2,3\n" + below(lambda n: f"a{n % 7},{FILMS[n % 2]},x"),
    "places": "0,1,2\n" + below(lambda n: f"{number(99)},{number(99)},0.5"),
    "an index": ",0\n" + below(lambda n: f"{n},{number(99)}"),
    "a year": "user,city,2024\n" + below(lambda n: f"u{n % 50},{('Bern', 'Zug')[n % 2]},{number(3000)}"),
    "years above counts": "2023,2024\n" + below(lambda n: f"{number(50)},{number(50)}"),
    "days above counts": "item,2024-05-01\n" + below(lambda n: f"{FILMS[n % 5]},{number(50)}"),
    "shares": "name,0.5,0.9\n" + below(lambda n: f"n{n},{number(99) / 100},{number(99) / 100}"),
    "texts": "film,city\n" + below(lambda n: f"{FILMS[n % 5]},{('Bern', 'Zug')[n % 2]}"),
    "y above y and n": "user,y\n" + below(lambda n: f"u{n % 9},{'yn'[n % 2]}"),
    "a header again inside": 2 * ("user,n\n" + below(lambda n: f"u{n % 9},{n}")),
    "no rows": "1,2\n",
}


def names_of(source: Path) -> list[str]:
    delimiter = delimiter_of(source)
    return header_of(next(pieces(source, delimiter.encode())), delimiter, source, nameless=True)[0]


@pytest.mark.parametrize("case", RECORDS)
def test_a_first_line_like_those_below_it_is_a_record(tmp_path: Path, case: str) -> None:
    with pytest.raises(DataError, match="line 1: expected names of columns, got a record like those below"):
        names_of(written(tmp_path, RECORDS[case]))


@pytest.mark.parametrize("case", HEADERS)
def test_names_are_names_though_some_look_like_values(tmp_path: Path, case: str) -> None:
    source = written(tmp_path, HEADERS[case])
    assert names_of(source) == HEADERS[case].split("\n", 1)[0].split(",")


def test_all_ways_to_data_refuse_it_in_one_line(tmp_path: Path) -> None:
    source = tmp_path / "clicks.csv"
    source.write_text(RECORDS["clicks"])
    schema = pslib.Schema(label="click", sparse=["user"])
    found = check(source)
    with pytest.raises(DataError) as described:
        describe(source)
    with pytest.raises(DataError) as opened:
        open_data(source, schema)
    with pytest.raises(DataError) as converted:
        convert_csv(source, tmp_path / "out", label=None)
    with pytest.raises(DataError) as labelled:
        convert_csv(source, tmp_path / "out", label="click")
    lines = {one.value.problems for one in (described, opened, converted, labelled)}
    assert lines == {found.problems}
    (line,) = found.problems
    assert "pslib convert csv --no-label --columns A,B,... SRC OUT" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("label", [None, "click"])
def test_names_that_are_given_make_columns_of_a_file_without_a_header(
    tmp_path: Path, label: str | None
) -> None:
    text, names = RECORDS["clicks"], ["time", "user", "item", "city", "price", "click"]
    out, expected = tmp_path / "out", tmp_path / "expected"
    convert_csv(written(tmp_path, text), out, label=label, columns=names)
    with_header = written(tmp_path, f"{','.join(names)}\n{text}", "named.txt")
    convert_csv(with_header, expected, label=label)
    assert pq.read_table(out).equals(pq.read_table(expected))
    assert pq.read_table(out).num_rows == ROWS


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a", "b"], r"columns: expected 3 names, as line 1 has 3 values, got 2"),
        (["a", "b", "a"], r"columns: 'a' is named 2 times"),
    ],
)
def test_names_that_do_not_fit_are_refused(tmp_path: Path, names: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        convert_csv(written(tmp_path, "u1,5,1\nu2,6,0\n"), tmp_path / "out", label=None, columns=names)


def test_the_command_line_names_columns_and_the_result_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "bare.csv", tmp_path / "bare.parquet"
    pd.DataFrame({"u": range(40), "i": range(40), "b": ["yes", "no"] * 20}).to_csv(
        source, index=False, header=False
    )
    words = ["--columns", "user,item,bought", "--label", "bought", "--positive", "yes", str(source), str(out)]
    assert main(["convert", "csv", *words]) == 0
    assert "50.00% positive" in capsys.readouterr().out
    assert open_data(out, pslib.Schema(label="bought", sparse=["user", "item"])).rows == 40


def test_a_delimiter_at_the_end_of_records_alone_makes_a_column_without_a_name(tmp_path: Path) -> None:
    lines = [f"u{n % 7},{n % 2}," for n in range(40)]
    source = written(tmp_path, "\n".join(["user,y", *lines]))
    assert names_of(source) == ["user", "y", ""]
    report = convert_csv(source, tmp_path / "out", label=None)
    assert (report.rows, report.rejected, list(report.columns)) == (40, 0, ["user", "y"])
    longer = written(tmp_path, "\n".join(["user,y", *(f"{line}x" for line in lines)]))
    assert names_of(longer) == ["user", "y"]
    with pytest.raises(DataError, match="line 2: expected 2 columns, got 3"):
        convert_csv(longer, tmp_path / "out", label=None, overwrite=True)


@pytest.mark.parametrize("label", [None, "y"])
def test_excel_writes_numbers_with_a_comma_where_semicolons_divide(tmp_path: Path, label: str | None) -> None:
    text = "\ufeffy;preis;maße\r\n1;15,79;3,4 x 5\r\n0;-0,5;7\r\n1;12;\r\n"
    convert_csv(written(tmp_path, text), tmp_path / "out", label=label)
    assert pq.read_table(tmp_path / "out").to_pylist() == [
        {"y": 1, "preis": 15.79, "maße": "3,4 x 5"},
        {"y": 0, "preis": -0.5, "maße": "7"},
        {"y": 1, "preis": 12.0, "maße": None},
    ]


@pytest.mark.parametrize(
    "text",
    [
        'y,x\n1,"1,5"\n0,"2,5"\n',  # another delimiter
        "y;x\n1;1,5\n0;1,5,7\n",  # a list
        "y;x\n1;1,5\n0;007\n",  # an id
    ],
)
def test_other_texts_with_commas_stay_as_they_are_written(tmp_path: Path, text: str) -> None:
    convert_csv(written(tmp_path, text), tmp_path / "out", label=None)
    column = pq.read_table(tmp_path / "out")["x"].to_pylist()
    assert column == [line.partition(text[1])[2].strip('"') for line in text.splitlines()[1:]]
    schema = pslib.Schema(label="y", dense=["x"])
    with pytest.raises(
        DataError, match="column 'x': a dense column is integer, float or boolean, got string"
    ):
        open_data(pq.read_table(tmp_path / "out"), schema)


def test_a_decimal_point_in_a_file_of_semicolons_is_one(tmp_path: Path) -> None:
    for label in (None, "y"):
        convert_csv(written(tmp_path, "y;x\n1;0.5\n0;7\n"), tmp_path / "out", label=label, overwrite=True)
        assert pq.read_table(tmp_path / "out")["x"].to_pylist() == [0.5, 7.0]


def test_bytes_of_another_encoding_are_told_with_a_way_to_rewrite_them(tmp_path: Path) -> None:
    source = written(tmp_path, "film,y\nAmélie,1\n".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"column 'film': expected UTF-8, got other bytes \(iconv -f latin1 -t "
    ):
        convert_csv(source, tmp_path / "out", label=None)


def test_labels_with_blanks_around_them_are_described_as_they_are_trained(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("user, click\n" + "".join(f"u{n % 7}, {n // 2 % 2}\n" for n in range(40)))
    found = describe(source)
    assert found.report.label_rate == 0.5
    assert found.schema == pslib.Schema(label="click", sparse=["user"])
    assert open_data(source, found.schema).rows == 40
