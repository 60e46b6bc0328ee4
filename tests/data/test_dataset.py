"""Opening data: what is listed, and what is refused, all problems at once."""

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data.column_types import KeyKinds, column_problems
from pslib.data.data_files import data_files
from pslib.data.dataset import ParquetData
from pslib.errors import PROBLEMS_MAX, ConfigurationError, DataError
from pslib.schema import RaggedField, Schema, SparseField

SCHEMA = Schema(label="click", dense=["price"], sparse=["user"], ragged=["tags"])
GOOD = {"click": [0, 1, 1], "price": [1.5, 2.0, 0.0], "user": [7, 8, 9], "tags": [[1], [], [2, 3]]}


def write(path: Path, columns: dict[str, object] | None = None, row_group_size: int | None = None) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**GOOD, **(columns or {})}), path, row_group_size=row_group_size)
    return str(path)


def problems_of(paths: object, schema: Schema = SCHEMA) -> list[str]:
    with pytest.raises(DataError) as caught:
        ParquetData(paths, schema)  # type: ignore[arg-type]
    assert all("\n" not in problem for problem in caught.value.problems)
    return list(caught.value.problems)


def test_row_groups_are_listed_in_file_order(tmp_path: Path) -> None:
    first, second = write(tmp_path / "b.parquet", row_group_size=2), write(tmp_path / "a.parquet")
    data = ParquetData([first, second], SCHEMA)
    listed = [(group.file, group.row_group, group.rows, group.first_row) for group in data.row_groups]
    assert listed == [(first, 0, 2, 0), (first, 1, 1, 2), (second, 0, 3, 0)]
    assert data.rows == 6


def test_a_folder_gives_its_parquet_files_by_name(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.pq", "deep/er/c.PARQUET", "_log/d.parquet", ".hidden.parquet"):
        write(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no data")
    names = [Path(group.file).name for group in ParquetData(tmp_path, SCHEMA).row_groups]
    assert names == ["a.pq", "b.parquet", "c.PARQUET"]


def test_a_pattern_gives_the_files_that_match_it(tmp_path: Path) -> None:
    for name in ("day1.parquet", "day2.parquet", "other.parquet"):
        write(tmp_path / name)
    data = ParquetData(str(tmp_path / "day*.parquet"), SCHEMA)
    assert [Path(group.file).name for group in data.row_groups] == ["day1.parquet", "day2.parquet"]


@pytest.mark.parametrize("pattern", ["*", "**", "**/*", "./*", "[dl]*"])
def test_a_pattern_gives_what_is_in_the_folders_that_match_it(tmp_path: Path, pattern: str) -> None:
    """Days as folders and a file of late ones beside them: none may be missing, and none come twice."""
    days = ("day=1/a.parquet", "day=2/deep/a.parquet", "late.parquet")
    for name in (*days, "_log/a.parquet", "day=1/.b.parquet"):
        write(tmp_path / name)
    (tmp_path / "logs").mkdir()
    (tmp_path / "day=1" / "notes.txt").write_text("no data")
    if pattern in ("**", "**/*"):  # here a file matches that is none of data
        (tmp_path / "day=1" / "notes.txt").unlink()
        (tmp_path / "_log" / "a.parquet").unlink()
    data = ParquetData(f"{tmp_path}/{pattern}", SCHEMA)
    assert [group.file for group in data.row_groups] == [f"{tmp_path}/{name}" for name in days]


def test_a_pattern_that_matches_folders_alone_gives_what_is_in_them(tmp_path: Path) -> None:
    for name in ("day=1/a.parquet", "day=2/a.parquet"):
        write(tmp_path / name)
    for pattern in ("day=*", "day=*/"):
        assert ParquetData(f"{tmp_path}/{pattern}", SCHEMA).rows == 6
    (tmp_path / "day=2" / "b.parquet").symlink_to("gone")
    assert "b.parquet: a link to gone, which is not there" in problems_of(f"{tmp_path}/day=*")[0]
    (tmp_path / "logs").mkdir()
    assert problems_of(f"{tmp_path}/log*") == [f"{tmp_path}/log*: no file matches this pattern"]


def test_a_uri_names_a_file_or_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    assert ParquetData(f"file://{file}", SCHEMA).rows == 3
    assert ParquetData(f"file://{tmp_path}", SCHEMA).row_groups[0].file == f"file://{file}"


@pytest.mark.parametrize(
    "name",
    ["time=2026-01-01 00%3A00%3A00/a.parquet", "a b.parquet", "a#1.parquet", "a?b=1.parquet", "ü.parquet"],
)
def test_a_folder_that_a_uri_names_may_hold_any_names(tmp_path: Path, name: str) -> None:
    """The first is how Spark writes a partition by time."""
    write(tmp_path / "days" / name)
    data = ParquetData(f"file://{tmp_path}/days", SCHEMA)
    assert [(group.rows, group.row_group) for group in data.row_groups] == [(3, 0)]
    assert ParquetData(data.row_groups[0].file, SCHEMA).rows == 3
    assert data.fingerprint == ParquetData(tmp_path / "days", SCHEMA).fingerprint


def test_the_fingerprint_follows_names_and_contents_but_not_the_folder(tmp_path: Path) -> None:
    here = ParquetData(write(tmp_path / "x" / "a.parquet"), SCHEMA).fingerprint
    assert ParquetData(write(tmp_path / "y" / "a.parquet"), SCHEMA).fingerprint == here
    others = [
        ParquetData(write(tmp_path / "b.parquet"), SCHEMA).fingerprint,
        ParquetData(write(tmp_path / "z" / "a.parquet", row_group_size=1), SCHEMA).fingerprint,
        ParquetData(write(tmp_path / "w" / "a.parquet", {"more": [1, 2, 3]}), SCHEMA).fingerprint,
    ]
    assert len({here, *others}) == 4
    assert 0 <= here < 1 << 64


def test_paths_that_are_not_there_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("label,price\n")
    (tmp_path / "nothing.parquet").write_bytes(b"")
    names = ["missing.parquet", "empty", "no*match", "text.parquet", "nothing.parquet"]
    problems = problems_of([tmp_path / name for name in names])
    assert len(problems) == 5
    expected = [
        "no such file",
        "got none",
        "no file matches",
        "expected a Parquet file",
        "expected a Parquet",
    ]
    for name, words, problem in zip(names, expected, problems, strict=True):
        assert name in problem
        assert words in problem


def test_no_path_at_all_is_refused() -> None:
    assert problems_of([]) == ["data: expected at least one path, got none"]


def test_an_empty_path_is_named_so_that_it_can_be_seen() -> None:
    assert problems_of("") == ["'': no such file or folder"]


def test_a_file_that_is_misspelt_is_told_the_nearest_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").touch()
    missing = f"{tmp_path}/clicks.cvs: no such file or folder"
    assert data_files(f"{tmp_path}/clicks.cvs").problems == (
        f"{missing}; did you mean {tmp_path}/clicks.csv?",
    )
    assert data_files(f"{tmp_path}/views.csv").problems == (f"{tmp_path}/views.csv: no such file or folder",)


def test_an_unknown_kind_of_uri_is_refused() -> None:
    assert "gopher://x/y: can't be opened" in problems_of("gopher://x/y")[0]


def test_a_file_given_twice_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet")
    assert problems_of([file, tmp_path]) == [f"{file}: given twice; name each file once"]


def test_a_file_given_twice_is_refused_under_every_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "d" / "a.parquet")
    (tmp_path / "link.parquet").symlink_to("d/a.parquet")
    (tmp_path / "linked").symlink_to("d")
    again = "given twice, also as d/a.parquet; name each file once"
    others = ["./d/a.parquet", "d//a.parquet", "d/../d/a.parquet", file, f"file://{file}", "link.parquet"]
    for other in [*others, "linked/a.parquet"]:
        assert problems_of(["d/a.parquet", other]) == [f"{other}: {again}"]
    for other, told in (
        ("d//", "d//a.parquet"),
        ("linked", "linked/a.parquet"),
        ("*/a.parquet", "linked/a.pa"),
    ):
        problems = problems_of(["d/a.parquet", other])
        assert any(one.startswith(told) and one.endswith(again) for one in problems)
    assert len(problems_of(["d", *others])) == len(others)
    (tmp_path / "d" / "b.parquet").symlink_to("a.parquet")
    assert problems_of("d") == [f"d/b.parquet: {again}"]  # in a folder its rows would count twice, too


def test_data_without_a_row_is_refused_but_one_empty_file_is_not(tmp_path: Path) -> None:
    empty = tmp_path / "a.parquet"
    pq.write_table(pa.table(GOOD).slice(0, 0), empty)
    assert "expected at least one row" in problems_of(empty)[0]
    write(tmp_path / "b.parquet")
    assert ParquetData(tmp_path, SCHEMA).rows == 3


def test_missing_columns_are_named_with_a_suggestion(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"clicks": [0], "users": [1], "zzz": [1.0], "tags": [[1]]}), file)
    assert problems_of(file) == [
        f"{file}: no column 'click'; did you mean 'clicks'?",
        f"{file}: no column 'price'; the file has clicks, users, zzz, tags",
        f"{file}: no column 'user'; did you mean 'users'?",
    ]


@pytest.mark.parametrize(
    ("column", "kind", "hint"),
    [
        ("click", pa.string(), "a label is integer, float or boolean, got string"),
        ("click", pa.null(), "got null"),
        ("price", pa.string(), "did you mean a sparse column"),
        ("price", pa.decimal128(10, 2), "cast it to float"),
        ("price", pa.list_(pa.float32()), "a dense column is"),
        ("price", pa.timestamp("s"), "a dense column is"),
        ("user", pa.float64(), "a float is no identity"),
        ("user", pa.list_(pa.int64()), "did you mean a ragged column"),
        ("user", pa.timestamp("s"), "take: hour"),
        ("user", pa.decimal128(10, 0), "cast it"),
        ("user", pa.struct([("a", pa.int8())]), "make columns of what is in it"),
        ("user", pa.dictionary(pa.int8(), pa.float32()), "a sparse column is"),
        ("tags", pa.int64(), "did you mean a sparse column"),
        ("tags", pa.list_(pa.float32()), "list of integers or strings"),
        ("tags", pa.list_(pa.list_(pa.int8())), "list of integers or strings"),
        ("tags", pa.map_(pa.string(), pa.int8()), "list of integers or strings"),
    ],
)
def test_a_type_that_does_not_fit_is_refused(column: str, kind: pa.DataType, hint: str) -> None:
    fields = {"click": pa.int8(), "price": pa.float32(), "user": pa.string(), "tags": pa.list_(pa.string())}
    problems = column_problems(pa.schema({**fields, column: kind}), SCHEMA, "x.parquet")
    assert len(problems) == 1
    assert problems[0].startswith(f"x.parquet: column {column!r}: ")
    assert hint in problems[0]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("click", pa.bool_()),
        ("click", pa.float16()),
        ("click", pa.uint64()),
        ("price", pa.bool_()),
        ("price", pa.uint8()),
        ("price", pa.null()),
        ("price", pa.dictionary(pa.int8(), pa.float32())),
        ("user", pa.null()),
        ("user", pa.bool_()),
        ("user", pa.binary(4)),
        ("user", pa.string_view()),
        ("user", pa.dictionary(pa.int8(), pa.large_string())),
        ("tags", pa.null()),
        ("tags", pa.large_list(pa.large_string())),
        ("tags", pa.list_(pa.uint8(), 3)),
        ("tags", pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    ],
)
def test_a_type_that_fits_is_taken(column: str, kind: pa.DataType) -> None:
    fields = {"click": pa.int8(), "price": pa.float32(), "user": pa.string(), "tags": pa.list_(pa.string())}
    assert column_problems(pa.schema({**fields, column: kind}), SCHEMA, "x.parquet") == []


def test_a_column_that_is_there_twice_is_refused() -> None:
    fields = [("click", pa.int8()), ("price", pa.int8()), ("user", pa.int8()), ("user", pa.int8())]
    problems = column_problems(pa.schema([*fields, ("tags", pa.list_(pa.int8()))]), SCHEMA, "x")
    assert problems == ["x: column 'user' is there 2 times; rename all but one"]


def test_integers_in_one_file_and_strings_in_another_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet")
    second = write(tmp_path / "b.parquet", {"user": ["7", "8", "9"], "tags": [["1"], [], ["2"]]})
    problems = problems_of(tmp_path)
    assert len(problems) == 2
    assert problems[0].startswith(f"{second}: column 'user' is string, but integer in {first}")
    assert problems[1].startswith(f"{second}: column 'tags' is string, but integer in {first}")


def test_columns_that_share_a_vocabulary_are_of_one_type(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [0, 1], "item": [1, 2], "seen": [["1"], ["2"]], "user": ["a", "b"]}), path)
    crossed = SparseField("both", of=("item", "user"))
    told = f"{path}: column 'seen' is string, but column 'item', whose keys it shares, is integer in {path}"
    for field in (SparseField("item"), SparseField("thing", vocabulary="item", of="item")):
        shared = Schema(label="y", sparse=[field], ragged=[RaggedField("seen", vocabulary="item")])
        with pytest.raises(DataError, match=re.escape(told)):
            ParquetData(path, shared)
    ParquetData(path, Schema(label="y", sparse=["item", "user", crossed], ragged=["seen"]))


def test_a_fault_of_a_thousand_files_is_not_a_thousand_lines(tmp_path: Path) -> None:
    problems = problems_of([tmp_path / f"{i}.parquet" for i in range(PROBLEMS_MAX + 7)])
    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1] == "... and 7 more problems"


def test_keys_of_a_test_are_made_as_those_of_its_training(tmp_path: Path) -> None:
    schema = Schema(label="y", sparse=["user"])
    for name, users in (("train", ["1", "2"]), ("same", ["3", "4"]), ("other", [1, 2])):
        pq.write_table(pa.table({"y": [0, 1], "user": users}), tmp_path / f"{name}.parquet")
    key_kinds: KeyKinds = {}
    ParquetData(tmp_path / "train.parquet", schema, key_kinds=key_kinds)
    ParquetData(tmp_path / "same.parquet", schema, key_kinds=key_kinds)
    for _again in range(2):  # what is refused changes nothing
        with pytest.raises(
            DataError, match=r"other.parquet: column 'user' is integer, but string in .*train"
        ):
            ParquetData(tmp_path / "other.parquet", schema, key_kinds=key_kinds)


@pytest.mark.parametrize(
    "given", [pa.table(GOOD), {"click": [0, 1]}.values(), [3]], ids=["table", "values", "number"]
)
def test_data_that_is_no_path_is_told_to_be_written_first(given: object) -> None:
    with pytest.raises(
        ConfigurationError, match=r"data: expected the path of Parquet.*write it to a file first"
    ):
        ParquetData(given, SCHEMA)  # type: ignore[arg-type]


def test_a_data_frame_is_not_taken_for_the_names_of_its_columns() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ConfigurationError, match="got DataFrame; write it to a file first"):
        ParquetData(pandas.DataFrame(GOOD), SCHEMA)


def test_a_file_that_may_not_be_read_is_not_called_broken(tmp_path, monkeypatch):
    """Root, as whom tests may run, may read all."""
    table = pa.table({"click": [0, 1], "user": [1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")

    def refuse(file):
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr("pslib.data.dataset.open_file", refuse)
    with pytest.raises(DataError) as error:
        ParquetData(tmp_path, Schema(label="click", sparse=["user"]))
    (line,) = error.value.problems
    assert line.startswith(f"{tmp_path}/a.parquet: this user (uid {os.geteuid()}) may not read it: chmod a+r")
    assert "Parquet" not in line
