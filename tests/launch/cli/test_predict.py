"""`pslib predict`, `nearest` and `vectors`: a checkpoint and data are enough."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pslib
from launch.cli.main import main
from rec_models import FM, GRU4Rec, Model
from tests.support.job_folder import refused

CLICKS = pslib.Schema(label="click", sparse=["user", "item"])
ROWS = {"click": [0, 1, 1] * 20, "user": list(range(30)) * 2, "item": ["a", "b", None, "d"] * 15}


def trained(model: Model, table: pa.Table, folder: Path) -> Path:
    pq.write_table(table, folder / "train.parquet")
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(model, cluster, batch_rows=16, progress=False)
        trainer.fit(folder / "train.parquet")
        trainer.save(folder / "checkpoint", keep_last=2)
    return folder / "checkpoint"


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks")
    trained(FM(CLICKS, dim=3), pa.table(ROWS), folder)
    (folder / "new").mkdir()
    pq.write_table(
        pa.table({"item": ["z", "a"], "user": [99, 1], "note": ["x", None]}), folder / "new" / "1.parquet"
    )
    pq.write_table(
        pa.table({"prediction": [5], "user": [2], "item": ["b"], "note": ["y"]}), folder / "new" / "2.parquet"
    )
    return folder


def test_each_row_gets_its_prediction_beside_its_columns(clicks: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "scores.parquet"
    assert (
        main(["predict", str(clicks / "checkpoint"), str(clicks / "new" / "1.parquet"), "--out", str(out)])
        == 0
    )
    scored = pq.read_table(out)
    assert scored.column_names == ["item", "user", "note", "prediction"]
    assert scored["note"].to_pylist() == ["x", None]
    expected = pslib.load(clicks / "checkpoint").predict(clicks / "new" / "1.parquet")
    np.testing.assert_array_equal(scored["prediction"], expected)


def test_an_out_that_ends_in_csv_is_csv(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, new = tmp_path / "scores.CSV", str(clicks / "new" / "1.parquet")
    assert main(["predict", str(clicks / "checkpoint"), new, "--out", str(out)]) == 0
    lines = out.read_text().splitlines()
    assert lines[0] == '"item","user","note","prediction"'
    expected = pslib.load(clicks / "checkpoint").predict(new)
    np.testing.assert_allclose([float(line.rpartition(",")[2]) for line in lines[1:]], expected, rtol=1e-6)
    capsys.readouterr()
    lists = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"user": [1], "item": ["a"], "seen": [[1, 2]]}), lists)
    (line,) = refused(
        capsys, "predict", str(clicks / "checkpoint"), str(lists), "--out", str(tmp_path / "lists.csv")
    )
    assert line == "out: a CSV holds no lists, and 'seen' has some; end it in .parquet, or keep other columns"
    assert not (tmp_path / "lists.csv").exists()


def test_times_in_csv_have_the_digits_that_they_came_with(clicks: Path, tmp_path: Path) -> None:
    rows = {
        "user": ["1", "2", "3"],
        "item": ["a", "b", "a"],
        "seconds": ["2026-03-01 08:00:00", "", "2026-03-01 08:00:37"],
        "parts": ["2026-03-01 08:00:00", "2026-03-01 08:00:00.25", "2026-03-01 08:00:00.5"],
        "zoned": ["2026-03-01T08:00:00Z"] * 3,
        "day": ["2026-03-01"] * 3,
    }
    files = [tmp_path / "first.csv", tmp_path / "second.csv"]
    for file, places in zip(files, ([0], [1, 2]), strict=True):
        lines = [",".join(rows), *(",".join(rows[name][place] for name in rows) for place in places)]
        file.write_text("\n".join(lines) + "\n")
    out = tmp_path / "scores.csv"
    assert main(["predict", str(clicks / "checkpoint"), *map(str, files), "--out", str(out)]) == 0
    written = [line.split(",")[2:6] for line in out.read_text().splitlines()[1:]]
    assert written == [
        ["2026-03-01 08:00:00", "2026-03-01 08:00:00.000", "2026-03-01 08:00:00Z", "2026-03-01"],
        ["", "2026-03-01 08:00:00.250", "2026-03-01 08:00:00Z", "2026-03-01"],
        ["2026-03-01 08:00:37", "2026-03-01 08:00:00.500", "2026-03-01 08:00:00Z", "2026-03-01"],
    ]


@pytest.mark.parametrize("name", ["s.tsv", "s.csv.gz", "s.JSONL", "s.xlsx"])
def test_a_name_of_a_format_that_is_not_written_is_refused(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    new, out = str(clicks / "new" / "1.parquet"), str(tmp_path / name)
    (line,) = refused(capsys, "predict", str(clicks / "checkpoint"), new, "--out", out)
    assert line == f"out: expected the name of a CSV or Parquet file, got {out}; end it in .parquet"


def test_vectors_are_not_written_to_a_name_of_csv(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, out = str(clicks / "train.parquet"), str(tmp_path / "v.csv")
    (line,) = refused(capsys, "vectors", str(clicks / "checkpoint"), "item", "--data", train, "--out", out)
    assert line == f"out: expected the name of a Parquet file, got {out}; end it in .parquet"


def test_files_of_other_columns_and_types_are_written_by_the_names_of_the_first(
    clicks: Path, tmp_path: Path
) -> None:
    files = [tmp_path / f"{name}.csv" for name in "abc"]
    files[0].write_text("user,item,day,price,note\n1,a,2024-05-01,1,\n2,b,2024-05-02,2,\n")
    files[1].write_text("note,item,user,day,price\nx,a,3,monday,2.5\n")
    files[2].write_text("item,user,more\nb,4,true\n")
    for out in (tmp_path / "out.parquet", tmp_path / "out.csv"):
        words = ["predict", str(clicks / "checkpoint"), *map(str, files), "--out", str(out)]
        assert main(words) == 0
    scored = pq.read_table(tmp_path / "out.parquet")
    assert scored.column_names == ["user", "item", "day", "price", "note", "more", "prediction"]
    assert [str(one) for one in scored.schema.types[:6]] == [
        "int64", "string", "string", "double", "string", "bool"
    ]  # fmt: skip
    assert scored["user"].to_pylist() == [1, 2, 3, 4]
    assert scored["day"].to_pylist() == ["2024-05-01", "2024-05-02", "monday", None]
    assert scored["price"].to_pylist() == [1.0, 2.0, 2.5, None]
    assert scored["note"].to_pylist() == [None, None, "x", None]
    expected = pslib.load(clicks / "checkpoint").predict([*map(str, files)])
    np.testing.assert_array_equal(scored["prediction"], expected)
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ['"user"', "1", "2", "3", "4"]


def test_what_is_no_checkpoint_no_data_or_no_column_is_one_line(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, new = str(clicks / "checkpoint"), str(clicks / "new" / "1.parquet")
    (tmp_path / "clicks.xlsx").write_bytes(b"PK\x03\x04")
    out = ("--out", str(tmp_path / "scores.csv"))
    assert refused(capsys, "predict", new, new, *out) == [
        f"{new}: expected a checkpoint, or the folder of a run, got a file"
    ]
    (line,) = refused(capsys, "predict", model, str(tmp_path / "clicks.xlsx"), *out)
    assert line.endswith(": expected Parquet, CSV or JSON lines, got an Excel file; save its sheet as CSV")
    assert refused(capsys, "predict", model, new, "--keep", "itm", *out) == [
        "keep: no column 'itm'; did you mean 'item'?"
    ]
    (line,) = refused(capsys, "nearest", model, "itm", "a", "--data", new)
    assert line.endswith(", got 'itm', did you mean 'item'?")


def test_lists_are_refused_before_a_prediction_for_csv_and_beside_other_values(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def predict(*_: object) -> None:
        raise AssertionError("predicted")

    monkeypatch.setattr("pslib.scoring.loaded_model.LoadedModel.predict", predict)
    for name, seen in (("a", [[1]]), ("b", ["x"])):
        pq.write_table(pa.table({"user": [1], "item": ["a"], "seen": seen}), tmp_path / f"{name}.parquet")
    words = ["predict", str(clicks / "checkpoint"), str(tmp_path / "a.parquet")]
    (line,) = refused(capsys, *words, "--out", str(tmp_path / "out.csv"))
    assert line.startswith("out: a CSV holds no lists, and 'seen' has some")
    words.append(str(tmp_path / "b.parquet"))
    (line,) = refused(capsys, *words, "--out", str(tmp_path / "out.parquet"))
    assert f"{tmp_path}/b.parquet: column 'seen' is string, and list<" in line
    assert line.endswith("> in a file before it: expected a common type; keep other columns")
    twice = pa.table([[1], ["a"], [1], [2]], ["user", "item", "x", "x"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    words[-2:] = [str(tmp_path / "twice.parquet"), "--out", str(tmp_path / "out.parquet")]
    (line,) = refused(capsys, *words)
    assert line.endswith("column 'x' is there 2 times; rename all but one, or keep other columns")


def test_a_frame_keeps_its_index_and_types(clicks: Path, tmp_path: Path) -> None:
    ages = pandas.array([1, None], dtype="Int64")
    frame = pandas.DataFrame({"user": [1, 2], "item": ["a", "b"], "age": ages}, index=["x", "y"])
    frame.to_parquet(tmp_path / "frame.parquet")
    words = ["predict", str(clicks / "checkpoint"), str(tmp_path / "frame.parquet")]
    assert main([*words, "--out", str(tmp_path / "out.parquet")]) == 0
    scored = pandas.read_parquet(tmp_path / "out.parquet")
    assert scored.drop(columns="prediction").equals(frame)


def test_the_last_line_counts_the_bad_records_that_have_no_prediction(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["user,item", *["1,a"] * 1500]
    lines[700] = "1"
    (tmp_path / "new.csv").write_text("\n".join(lines))
    asked = ["predict", str(clicks / "checkpoint"), str(tmp_path / "new.csv"), "--out", str(tmp_path / "out")]
    for _ in range(2):  # also of text that is converted already
        assert main([*asked, "--overwrite"]) == 0
        told = capsys.readouterr().out.splitlines()
        assert told[-1] == f"1,499 rows  {tmp_path}/out; 1 bad record of the text left out"
    assert main([*asked, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bad_records"] == 1


def test_chosen_columns_of_several_files_are_kept_in_order(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores.parquet"
    asked = [
        "predict",
        str(clicks / "checkpoint"),
        str(clicks / "new"),
        "--out",
        str(out),
        "--keep",
        "user",
        "--json",
    ]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3
    assert pq.read_table(out).column_names == ["user", "prediction"]
    assert pq.read_table(out)["user"].to_pylist() == [99, 1, 2]
    (line,) = refused(capsys, *asked)
    assert "exists already" in line
    (line,) = refused(capsys, *asked, "--overwrite", "--keep", "town")
    assert "no column 'town'; the data has item, note, prediction, user" in line


def test_the_nearest_values_of_a_field_are_shown(clicks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = str(clicks / "train.parquet")
    assert (
        main(["nearest", str(clicks / "checkpoint"), "user", "7", "-k", "3", "--data", train, "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)["nearest"]
    expected = pslib.load(clicks / "checkpoint").nearest("user", 7, 3, among=list(range(30)))
    assert [one["value"] for one in found] == expected["value"].to_pylist()
    (line,) = refused(capsys, "nearest", str(clicks / "checkpoint"), "user", "x", "--data", train)
    assert "value: 'user' has integers, got 'x'" in line


def test_the_nearest_items_of_a_session_model_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = pa.table({"items": [["a", "b", "c"], ["b", "d"]] * 8})
    model = GRU4Rec(pslib.Schema(label=None, ragged=["items"]), dim=4, negatives=4)
    checkpoint = trained(model, sessions, tmp_path)
    asked = ["nearest", str(checkpoint), "item", "b", "-k", "2", "--data", str(tmp_path / "train.parquet")]
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert {line.split()[1] for line in lines} < {"a", "c", "d"}


def test_the_vectors_of_a_field_are_written_once_for_each_value(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, out = str(clicks / "checkpoint"), tmp_path / "vectors.parquet"
    asked = ["vectors", checkpoint, "item", "--data", str(clicks / "train.parquet"), "--out", str(out)]
    assert main(asked) == 0
    assert capsys.readouterr().out == f"4 vectors of 3 numbers  {out}\n"
    found = pq.read_table(out)
    assert set(found["item"].to_pylist()) == {"a", "b", None, "d"}  # no value is a value too
    expected = pslib.load(checkpoint).vectors("item", found["item"].to_pylist())
    np.testing.assert_array_equal(np.stack(found["vector"].to_numpy()), expected)
    (line,) = refused(capsys, *asked)
    assert "exists already" in line
    (line,) = refused(capsys, *asked[:2], "town", *asked[3:], "--overwrite")
    assert line == "field: expected one of user, item, got 'town'"


def test_the_folder_of_a_run_stands_for_its_checkpoint(clicks: Path, tmp_path: Path) -> None:
    (checkpoint,) = (clicks / "checkpoint").glob("checkpoint-*")
    shutil.copytree(checkpoint, tmp_path / "run" / "checkpoint-unfinished" / "checkpoint-000001")
    assert pslib.load(tmp_path / "run").rows == pslib.load(checkpoint).rows
    shutil.copytree(checkpoint, tmp_path / "run" / "checkpoint")
    assert pslib.load(tmp_path / "run").path == str(tmp_path / "run" / "checkpoint")


def test_what_is_no_checkpoint_is_one_line(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = refused(capsys, "predict", str(tmp_path), str(clicks / "new"), "--out", str(tmp_path / "out"))
    assert "no manifest.json there" in line
    assert not (tmp_path / "out").exists()
