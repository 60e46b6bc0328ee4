"""Converters decide by the values that they see, and say so where there is another reading."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from pslib.data.arrow_data import open_data
from pslib.data.convert.convert import convert_csv, convert_jsonl, convert_libffm, convert_libsvm
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.errors import ConfigurationError, DataError
from pslib.schema import DenseField, RaggedField, Schema, SparseField
from tests.data.convert.test_convert import rejects_of, written


def column(out, name):
    return pq.read_table(out).column(name).to_pylist()


@pytest.mark.parametrize("quoted", [False, True])
def test_the_null_of_hive_is_a_null_among_numbers_ids_and_words(tmp_path, out, quoted):
    null = r'"\N"' if quoted else r"\N"
    text = f"label,price,id,city\n1,1.5,7,a\n0,{null},{null},{null}\n1,2.5,8,b\n"
    report = convert_csv(written(tmp_path, text), out, integers=["id"])
    assert report.schema.dense == (DenseField("price"),)
    assert (column(out, "price"), column(out, "id")) == ([1.5, None, 2.5], [7, None, 8])
    assert column(out, "city") == ["a", r"\N" if quoted else None, "b"]


def test_ids_that_pandas_wrote_with_a_point_are_told_and_can_be_keys(tmp_path, out):
    rows = [f"{n % 2},{'' if n == 5 else f'{n}.0'},{n}.5\n" for n in range(20)]
    source = written(tmp_path, "label,id,x\n" + "".join(rows))
    report = convert_csv(source, out)
    assert report.notes == (
        "column 'id': whole numbers with a point, taken as numbers; if they are ids: --integers id",
    )
    again = convert_csv(source, out, integers=["id"], overwrite=True)
    assert (again.schema.sparse, again.schema.dense, again.notes) == (
        (SparseField("id"),),
        (DenseField("x"),),
        (),
    )
    assert column(out, "id") == [None if n == 5 else n for n in range(20)]


@pytest.mark.parametrize("cell", ["7.5", "many", "9223372036854775808.0"])
def test_an_id_with_a_fraction_is_set_aside(tmp_path, out, cell):
    text = f"label,id\n1,{2**53 + 1}.0\n0,{cell}\n1,3\n"
    convert_csv(written(tmp_path, text), out, integers=["id"], rejects_max_share=1)
    assert column(out, "id") == [2**53 + 1, 3]
    assert [line for line, _, _ in rejects_of(out)] == [3]


@pytest.mark.parametrize("odd", ["1,234.5", "$3", "50%", "-", "?", "1.234,5", "1 000.5", "unknown"])
def test_what_keeps_a_column_from_being_one_of_numbers_is_told(tmp_path, out, odd):
    text = "label\tprice\tcity\n" + "1\t2.5\tParis\n" * 3 + f"0\t{odd}\tRome\n"
    report = convert_csv(written(tmp_path, text), out, delimiter="\t")
    (note,) = report.notes
    assert note.startswith(f"column 'price': taken as words, as {odd!r} is no plain number")
    assert f"note: {note}" in report.lines()
    few = "label\tprice\n" + f"1\t{odd}\n0\tRome\n1\tParis\n"
    assert convert_csv(written(tmp_path, few), out, delimiter="\t", overwrite=True).notes == ()


def jsonl(tmp_path, values):
    records = ({"label": n % 2, "x": value, "tag": "a"} for n, value in enumerate(values))
    return written(tmp_path, "".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize("around", [lambda one: one, lambda one: [one, 1]], ids=["plain", "in lists"])
def test_ids_above_2_to_63_stay_as_they_are_in_json_lines(tmp_path, out, around):
    values = [around(one) for one in (2**64 - 1, 5, 2**63)]
    convert_jsonl(jsonl(tmp_path, values), out)
    assert column(out, "x") == values
    mixed = convert_jsonl(jsonl(tmp_path, [*values, around(-1)]), out, overwrite=True, rejects_max_share=1)
    assert (mixed.rejected, column(out, "x")) == (2, [values[1], around(-1)])


def test_ids_with_a_point_are_told_in_json_lines_and_can_be_keys(tmp_path, out):
    source = jsonl(tmp_path, [7.0, None, 8.0, 2.0**52])
    report = convert_jsonl(source, out)
    assert report.notes == (
        "column 'x': whole numbers with a point, taken as numbers; if they are ids: --sparse x",
    )
    assert SparseField("x") in convert_jsonl(source, out, sparse=["x"], overwrite=True).schema.sparse
    assert pq.read_table(out).column("x").combine_chunks().equals(pa.array([7, None, 8, 2**52]))


FFM = [
    ("1:7:1 2:5:1", "1:9:1 2:5:1", "", "f1 f2", ""),
    ("1:7:0.5 2:5:1", "1:9:1 2:5:1", "f1_value", "f1 f2", "f1: several indexes with values other than 1"),
    ("1:7:0.5 2:5:1", "1:7:1 2:5:1", "f1_value", "f2", ""),
    ("1:7:0 2:5:1", "1:7:1 2:5:1", "f1_value", "f2", ""),
    ("1:7:0 1:8:1 2:5:1", "1:7:1 1:8:0 2:5:1", "", "f1 f2", "f1: an index of the value 0 is no key"),
    ("1:7:0 1:8:2 2:5:1", "1:7:1 1:8:0 2:5:1", "f1_value", "f1 f2", "f1: an index of the value 0 is no key"),
]


@pytest.mark.parametrize(("one", "other", "dense", "sparse", "note"), FFM)
def test_a_field_of_libffm_is_what_its_indexes_and_values_show(
    tmp_path, out, one, other, dense, sparse, note
):
    report = convert_libffm(written(tmp_path, f"1 {one}\n0 {other}\n"), out)
    assert [field.name for field in report.schema.dense] == dense.split()
    assert [field.name for field in report.schema.sparse] == sparse.split()
    assert any(line.startswith(note) for line in report.notes) == bool(note)
    values = {"1:8:1 ": [8, 7], "1:8:2 ": [8, 7]}.get(one[6:12])
    assert values is None or column(out, "f1") == values


def test_values_beside_several_indexes_of_libffm_are_told(tmp_path, out):
    report = convert_libffm(written(tmp_path, "1 1:7:0.5 1:8:2\n0 1:9:0 1:8:1\n"), out)
    assert report.schema.ragged == (RaggedField("f1", pooling="sum"),)
    assert (column(out, "f1"), column(out, "f1_value")) == ([[7, 8], [8]], [[0.5, 2], [1]])
    assert (
        "f1: values other than 1 beside several indexes of a record are kept, and no field reads"
        in report.notes[0]
    )


@pytest.mark.parametrize(("last", "values"), [("", None), (" 9:0.5", [[1], [1, 0.5]])])
def test_pairs_of_libsvm_without_a_value_are_left_out_and_others_told(tmp_path, out, last, values):
    report = convert_libsvm(written(tmp_path, f"1 3:1 4:0\n0 3:0 5:1{last}\n"), out)
    assert column(out, "ids") == [[3], [5, 9] if values else [5]]
    assert ("values" in pq.read_schema(out).names) == bool(values)
    assert not values or column(out, "values") == values
    assert len(report.notes) == 1 + bool(values)
    assert report.notes[-1].startswith("pairs of the value 0 are left out")


LABELS = [
    (["yes", "no", " yes ", "No"], "yes", [1, 0, 1, 0]),
    (["Y", "N", "Y"], "Y", [1, 0, 1]),
    (["1", "2", "2"], "2", [0, 1, 1]),
    (["-1", "1"], "1", [0, 1]),
    (["5", "4", "3", "1"], "4,5", [1, 1, 0, 0]),
]


@pytest.mark.parametrize(("values", "positive", "labels"), LABELS)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_labels_of_any_values_become_0_and_1_by_the_command_that_a_training_names(
    tmp_path: Path, form: str, values: list[str], positive: str, labels: list[int]
) -> None:
    source, out = tmp_path / f"in.{form}", tmp_path / "out.parquet"
    given = [json.loads(value) if value.strip("-").isdigit() else value for value in values]
    if form == "jsonl":
        lines = [json.dumps({"y": value, "user": number}) for number, value in enumerate(given)]
    else:
        lines = ["y,user", *(f"{value},{number}" for number, value in enumerate(given))]
    source.write_text("\n".join(lines) + "\n")
    schema = Schema(label="y", sparse=["user"])
    with pytest.raises(DataError) as opened:
        open_data(source, schema)
    (line,) = opened.value.problems
    told = rf"say which values count as 1, by pslib (convert {form} --label y --positive) VALUES SRC OUT"
    command = re.search(told, line)
    assert command
    try:
        lines = list(describe(source, "y").report.problems)
    except DataError as error:
        lines = list(error.problems)
    for found in (lines, check(source, schema).problems):
        assert [one for one in found if re.search(told, one)]
    assert main([*command[1].split(), positive, str(source), str(out)]) == 0
    assert pq.read_table(out)["y"].to_pylist() == labels
    assert check(out, schema).ok


def test_a_missing_label_counts_as_nothing_and_one_value_for_all_is_told(tmp_path: Path) -> None:
    source = written(tmp_path, "y,user\n" + "no,1\n" * 2000 + ",2\n")
    report = convert_csv(source, tmp_path / "out", label="y", positive=["Yes"])
    assert (report.rows, report.rejected) == (2000, 1)
    assert report.first_rejects[0].reason == "column 'y': expected a value, got ''"
    assert any("note: column 'y': every label is 0: AUC is not defined" in line for line in report.lines())
    with pytest.raises(ConfigurationError, match="positive: expected a label with it, got none"):
        convert_csv(source, tmp_path / "out", label=None, positive=["Yes"], overwrite=True)
