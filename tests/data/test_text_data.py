"""Text is data as Parquet is: the same rows, keys and messages, whatever the ids of a file look like."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pslib import DenseField, RaggedField, Schema, SparseField
from pslib.data.arrow_data import open_data
from pslib.data.column_types import KeyKinds
from pslib.data.dataset import ParquetData
from pslib.data.inspect.check import check
from pslib.data.item_catalog import catalogue_of, item_counts
from pslib.data.order import GroupSlice
from pslib.data.window import DecodedWindow, WindowDecoder
from pslib.errors import DataError

USERS = Schema(label="y", sparse=["user"])


def decoded(data: ParquetData) -> DecodedWindow:
    decoder = WindowDecoder(data)
    return decoder.decode([GroupSlice(i, 0, group.rows) for i, group in enumerate(data.row_groups)])


def keys(data: Any, schema: Schema = USERS, kinds: KeyKinds | None = None) -> list[int]:
    return decoded(open_data(data, schema, key_kinds=kinds)).sparse_keys[:, 0].tolist()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def csv_of(name: str, *users: object) -> str:
    Path(name).write_text("y,user\n" + "".join(f"1,{user}\n" for user in users))
    return name


def parquet_of(name: str, *users: object) -> str:
    pd.DataFrame({"y": 1, "user": pd.Series(users)}).to_parquet(name)
    return name


FRAME = pd.DataFrame(
    {
        "y": [0, 1, 1, 0],
        "user": [7, -1, 7, 2**62],
        "city": ["Köln", "東京, 2", None, 'a "b"'],
        "price": [0.1, None, -3e-9, 7.0],
        "tags": ["a|b", None, "", "b"],
        "at": pd.to_datetime(["2024-05-01 12:30", "1999-01-01 00:00", None, "2024-02-29 23:59"]),
    }
)
SCHEMA = Schema(
    label="y",
    dense=["price"],
    sparse=["user", "city", SparseField("hour", of="at", take="hour")],
    ragged=[RaggedField("tags", separator="|")],
)


def written_as(form: str) -> str:
    if form.startswith("csv"):
        FRAME.to_csv(form.replace("_", "."), index=False)
    else:
        FRAME.to_json("data.jsonl.gz", orient="records", lines=True, date_format="iso", double_precision=15)
        form = "data.jsonl.gz"
    return form.replace("_", ".")


@pytest.mark.parametrize("form", ["csv.csv", "csv.csv.gz", "csv.csv.zst", "csv.tsv", "jsonl"])
def test_a_frame_and_the_text_of_it_are_the_same_examples(folder: Path, form: str) -> None:
    if form.endswith(".zst"):
        FRAME.to_csv("plain.csv", index=False)
        with pa.OSFile(form, "wb") as file, pa.CompressedOutputStream(file, "zstd") as stream:
            stream.write(Path("plain.csv").read_bytes())
    elif form.endswith(".tsv"):
        FRAME.to_csv(form, index=False, sep="\t")
    else:
        form = written_as(form)
    expected, found = decoded(open_data(FRAME, SCHEMA)), decoded(open_data(form, SCHEMA))
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.dense, expected.dense)
    np.testing.assert_array_equal(found.sparse_keys, expected.sparse_keys)
    for mine, its in zip(found.lists[0][:2], expected.lists[0][:2], strict=True):
        np.testing.assert_array_equal(mine, its)


def test_ids_that_are_integers_in_one_file_and_not_in_the_next_are_texts_in_both(folder: Path) -> None:
    files = [csv_of("a.csv", 7, 8), csv_of("b.csv", 7, "A12", "007")]
    assert keys(files) == keys(parquet_of("c.parquet", "7", "8", "7", "A12", "007"))
    assert keys(files[::-1]) == keys(parquet_of("d.parquet", "7", "A12", "007", "7", "8"))
    assert keys("[ab].csv") == keys(files)


def test_ids_that_are_integers_everywhere_are_integers(folder: Path) -> None:
    assert keys([csv_of("a.csv", 7, 8), csv_of("b.csv", 9)]) == keys(parquet_of("c.parquet", 7, 8, 9))


AS_NUMBER = {
    "buckets": {"sparse": [SparseField("bucket", of="user", buckets="log")]},
    "dense": {"dense": ["user"]},
}


@pytest.mark.parametrize("role", AS_NUMBER)
def test_integers_that_are_numbers_and_keys_are_refused_among_texts_of_their_vocabulary(
    folder: Path, role: str
) -> None:
    of_user = [SparseField("user_id", "id", of="user"), SparseField("friend", "id")]
    more = dict(AS_NUMBER[role])
    schema = Schema(label="y", sparse=of_user + more.pop("sparse", []), **more)
    Path("a.csv").write_text("y,user,friend\n1,7,7\n0,8,9\n")
    found = decoded(open_data("a.csv", schema)).sparse_keys
    assert found[0, 0] == found[0, 1]
    Path("b.csv").write_text("y,user,friend\n1,7,A12\n")
    with pytest.raises(DataError) as error:
        open_data("b.csv", schema)
    (line,) = error.value.problems
    assert line == (
        "b.csv: column 'user', whose keys 'friend' shares, is read as a number too, but is string in b.csv: "
        "expected integers there; or write the number as a column of its own"
    )


@pytest.mark.parametrize("files", [["a.csv", "b.csv"], ["b.csv", "a.csv"]])
def test_truth_values_beside_texts_are_refused_with_the_file_of_the_texts(
    folder: Path, files: list[str]
) -> None:
    csv_of("a.csv", "x", "y")
    csv_of("b.csv", "true", "false")
    with pytest.raises(DataError) as error:
        open_data(files, USERS)
    (line,) = error.value.problems
    assert line.startswith("b.csv: column 'user' is boolean, but string in a.csv: ")


@pytest.mark.parametrize("trained", [("7", "8"), (7, 8)], ids=["texts", "integers"])
@pytest.mark.parametrize("asked", [(8, 9), (8, "A12")], ids=["digits", "names"])
def test_text_takes_the_kind_of_the_data_that_was_there_before(
    folder: Path, trained: tuple[Any, ...], asked: tuple[Any, ...]
) -> None:
    kinds: KeyKinds = {}
    eight = keys(parquet_of("train.parquet", *trained), kinds=kinds)[1]
    found = keys(csv_of("new.csv", *asked), kinds=kinds)
    assert found[0] == eight
    assert found[1] not in keys("train.parquet")
    assert kinds["user"][0] == ("string" if trained[0] == "7" else "integer")


def test_parquet_after_text_is_held_to_its_types(folder: Path) -> None:
    kinds: KeyKinds = {}
    keys(csv_of("train.csv", 7, 8), kinds=kinds)
    told = r"new.parquet: column 'user' is string, but integer in train.csv: equal values would get different"
    with pytest.raises(DataError, match=told):
        keys(parquet_of("new.parquet", "7"), kinds=kinds)


def test_fields_that_share_a_vocabulary_or_a_column_are_of_one_kind(folder: Path) -> None:
    Path("a.csv").write_text("y,buyer,seller,place\n1,7,A12,5\n1,8,7,6\n")
    schema = Schema(
        label="y",
        sparse=[
            SparseField("buyer", "person"),
            SparseField("seller", "person"),
            SparseField("pair", of=("buyer", "place")),
        ],
    )
    found = decoded(open_data("a.csv", schema)).sparse_keys
    assert found[0, 0] == found[1, 1]  # 7 buys and sells
    as_texts = pd.DataFrame({"y": 1, "buyer": ["7", "8"], "seller": ["A12", "7"], "place": [5, 6]})
    np.testing.assert_array_equal(found, decoded(open_data(as_texts, schema)).sparse_keys)


def test_parts_of_texts_have_the_kind_of_the_column_that_they_share_keys_with(folder: Path) -> None:
    schema = Schema(label="y", sparse=["item"], ragged=[RaggedField("seen", "sum", "item", separator=" ")])
    lists = Schema(label="y", sparse=["item"], ragged=[RaggedField("seen", "sum", "item")])
    frame = pd.DataFrame({"y": [1, 0], "item": [3, 4], "seen": ["4 5", ""]})
    frame.to_csv("a.csv", index=False)
    given = frame.assign(seen=[[4, 5], []])
    expected = np.unique(item_counts(open_data(given, lists), "seen")[0])
    for data in (frame, "a.csv"):
        found = open_data(data, schema)
        np.testing.assert_array_equal(item_counts(found, "seen")[0], expected)
        assert catalogue_of(found, schema.ragged[0])[1].type in (pa.int64(), pa.int32())


def test_truth_values_beside_names_are_refused(folder: Path) -> None:
    kinds: KeyKinds = {"user": ("string", "user", "train.parquet")}
    told = (
        "a.csv: column 'user' is boolean, but string in train.parquet: equal values would get different keys"
    )
    with pytest.raises(DataError, match=told):
        keys(csv_of("a.csv", "true", "false"), kinds=kinds)


def test_numbers_that_are_not_written_as_such_are_read_where_numbers_are(folder: Path) -> None:
    Path("a.csv").write_text("y, n,user\n 1, NA,7\n 0, 007,8\n")
    schema = Schema(label="y", dense=[DenseField("n", fill=-1)], sparse=["user"])
    found = decoded(open_data("a.csv", schema))
    assert (found.labels.tolist(), found.dense[:, 0].tolist()) == ([1, 0], [-1, 7])
    assert check("a.csv", schema).ok
    Path("a.jsonl").write_text('{"y": "1", "n": null, "user": 7}\n{"y": "0", "n": "7", "user": 8}\n')
    found = decoded(open_data("a.jsonl", schema))
    assert (found.labels.tolist(), found.dense[:, 0].tolist()) == ([1, 0], [-1, 7])
    found = decoded(open_data("a.csv", Schema(label="y", sparse=["n"])))
    texts = pd.DataFrame({"y": [1, 0], "n": [" NA", " 007"]})
    np.testing.assert_array_equal(
        found.sparse_keys, decoded(open_data(texts, Schema(label="y", sparse=["n"]))).sparse_keys
    )


@pytest.mark.parametrize(
    ("text", "schema", "told"),
    [
        (
            "y,n\n1,5\n0,oops\n",
            Schema(label="y", dense=["n"]),
            r"a.csv: column 'n': a dense column is integer, float or boolean, got string.* "
            r"\(it is text, as 'oops' in row 1 \(from 0\) is no number\)",
        ),
        (
            "y,at\n1,2024-05-01\n0,yesterday\n",
            Schema(label="y", sparse=[SparseField("day", of="at", take="day")]),
            r"a.csv: column 'at': take needs a timestamp.*'yesterday' in row 1 \(from 0\) is no time\)",
        ),
        (
            "y,tags\n1,a|b\n",
            Schema(label="y", ragged=["tags"]),
            r"a.csv: column 'tags': a ragged column is a list.*texts of lists need a separator: "
            r"\{name: tags, separator: '\|'\}, in Python RaggedField\('tags', separator='\|'\)",
        ),
        (
            "y,os\n1,4.4\n0,5.0\n",
            Schema(label="y", sparse=["os"]),
            r"a.csv: column 'os': a sparse column is .*, got double; .* to read it as it is written, make "
            r"Parquet of it: pslib convert csv --no-label --sparse os",
        ),
        ("y,n\n3,1\n", Schema(label="y", dense=["n"]), r"a.csv: row 0 .* a label is 0 or 1, got 3"),
        ("y,n\n1,2\n", Schema(label="y", dense=["m"]), r"a.csv: no column 'm'"),
        (
            "y,n\n1,2\n",
            Schema(label="y", dense=["a1", "a2", "a3", "a4"]),
            r"a.csv: no columns 'a1', 'a2', 'a3' and 1 other; the file has y, n",
        ),
        ("", Schema(label="y", dense=["n"]), "a.csv: expected a header and rows, got an empty file"),
        ("y,n\n", Schema(label="y", dense=["n"]), "a.csv: expected at least one row, got none"),
        ("y,y\n", Schema(label="y", dense=["n"]), "a.csv: line 1: column 'y' is named 2 times"),
    ],
)
def test_text_that_does_not_fit_gets_one_line(folder: Path, text: str, schema: Schema, told: str) -> None:
    Path("a.csv").write_text(text)
    with pytest.raises(DataError, match=told) as caught:
        open_data("a.csv", schema)
    assert len(caught.value.problems) == 1
    if text != "y,n\n":
        assert any(line.startswith("a.csv: ") for line in check("a.csv", schema).problems)


def test_a_column_that_conversion_left_out_is_named_with_the_reason(folder: Path) -> None:
    Path("a.jsonl").write_text('{"y": 1, "who": {"a": 1}}\n')
    with pytest.raises(
        DataError, match=r"a.jsonl: column 'who': expected a value or a list .* got an object"
    ):
        open_data("a.jsonl", Schema(label="y", sparse=["who"]))


def test_a_separator_serves_parquet_and_frames_and_check_counts_the_lists(folder: Path) -> None:
    frame = pd.DataFrame({"y": [1, 0, 1], "tags": ["a|b", None, ""]})
    frame.to_parquet("a.parquet")
    schema = Schema(label="y", ragged=[RaggedField("tags", separator="|")])
    for data in (frame, "a.parquet"):
        assert np.diff(decoded(open_data(data, schema)).lists[0][1]).tolist() == [2, 0, 0]
    (column,) = (one for one in check("a.parquet", schema).columns if one.name == "tags")
    assert (column.lengths, column.nulls, column.empty_lists) == ((0, 1.0, 2), 1, 1)


def test_a_separator_is_in_the_plain_form_only_where_there_is_one() -> None:
    plain = Schema(label="y", ragged=["a", RaggedField("b", separator="|")]).to_dict()
    assert plain["ragged"] == [
        {"name": "a", "pooling": "mean", "vocabulary": None},
        {"name": "b", "pooling": "mean", "vocabulary": None, "separator": "|"},
    ]
    assert Schema.from_dict(plain).ragged[1].separator == "|"


def test_row_groups_and_fingerprint_are_those_of_the_text(folder: Path) -> None:
    data = open_data(csv_of("a.csv", 7, 8), USERS)
    assert [(group.file, group.rows) for group in data.row_groups] == [("a.csv", 2)]
    before = data.fingerprint
    assert open_data(csv_of("a.csv", 7, 8), USERS).fingerprint == before  # converted anew
    assert open_data(csv_of("a.csv", 7, 9, 9), USERS).fingerprint != before
    Path("a.csv").write_text("y,user\n1,7\n1,8")  # the same rows, in another text
    assert open_data("a.csv", USERS).fingerprint != before


def test_text_that_is_changed_after_it_was_opened_is_told(folder: Path) -> None:
    data = open_data(csv_of("a.csv", 7, 8), USERS)
    csv_of("a.csv", 7, 8, 9)
    with pytest.raises(
        DataError, match=r"a.csv: row group 0 can't be read any more.*was it changed meanwhile"
    ):
        decoded(data)


def mixed_folder() -> Iterator[str]:
    Path("data").mkdir()
    yield csv_of("data/a.csv", 7)
    Path("data/b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"y": 1, "user": 8}).encode()))
    yield "data/b.jsonl.gz"
    for name in ("c.rejects.tsv", "_d.csv", "e.json", "f.txt"):
        csv_of(f"data/{name}", 9)


def test_a_folder_of_text_is_read_but_for_rejects_and_what_may_be_no_data(folder: Path) -> None:
    files = list(mixed_folder())
    data = open_data("data", USERS)
    assert [group.file for group in data.row_groups] == files
    assert open_data("data/e.json".replace("e.json", "a.csv"), USERS).rows == 1


def test_text_beside_parquet_in_a_folder_is_left_out_and_named(folder: Path) -> None:
    list(mixed_folder())
    parquet_of("data/part.parquet", 7, 8)
    assert open_data("data", USERS).rows == 2
    (note,) = (line for line in check("data", USERS).notes if "left out by name" in line)
    assert "6 files or folders left out by name: data/a.csv, data/b.jsonl.gz" in note
    assert open_data(["data/part.parquet", "data/a.csv"], USERS).rows == 3
