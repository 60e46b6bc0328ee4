"""Data as users have it: small Parquet files, each with one thing that is not, or not quite, as expected."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 6
SCHEMA = {"label": "click", "dense": ["price"], "sparse": ["user"], "ragged": ["tags"]}
"""Schema of all cases."""

Case = Callable[[Path], None]


def table(**changes: Any) -> pa.Table:
    """A sound table of `ROWS` rows with some columns changed; None leaves one out."""
    columns: dict[str, Any] = {
        "click": pa.array([1, 0, 1, 0, 0, 1], pa.int8()),
        "price": pa.array([0.5, 1.0, 2.0, 3.5, 0.0, 1.5]),
        "user": pa.array(["ann", "bob", "cy", "ann", "bob", "eve"]),
        "tags": pa.array([[1, 2], [3], [1], [2, 3], [1, 2, 3], [2]], pa.list_(pa.int64())),
    }
    columns |= changes
    return pa.table({name: column for name, column in columns.items() if column is not None})


def one_file(**changes: Any) -> Case:
    """A folder of one file."""
    return lambda folder: pq.write_table(table(**changes), folder / "a.parquet", row_group_size=4)


def two_files(**changes: Any) -> Case:
    """A sound file, and one with some columns changed."""
    return _files({}, changes)


def _files(*all_changes: dict[str, Any]) -> Case:
    def write(folder: Path) -> None:
        for name, changes in zip("ab", all_changes, strict=True):
            pq.write_table(table(**changes), folder / f"{name}.parquet", row_group_size=4)

    return write


def _without_statistics(**changes: Any) -> Case:
    return lambda folder: pq.write_table(
        table(**changes), folder / "a.parquet", row_group_size=4, write_statistics=False
    )


def _reordered(folder: Path) -> None:
    one_file()(folder)
    more = table(more=NUMBERS).select(["more", "tags", "user", "price", "click"])
    pq.write_table(more, folder / "b.parquet")


def _truncated(folder: Path) -> None:
    two_files()(folder)
    content = (folder / "b.parquet").read_bytes()
    (folder / "b.parquet").write_bytes(content[: len(content) // 2])


def _damaged(folder: Path) -> None:
    """The footer is whole, the pages of the second row group are not."""
    two_files()(folder)
    damage(folder / "b.parquet", 1, 2)


def damage(path: Path, row_group: int, column: int) -> None:
    """Overwrite all pages of one column of one row group."""
    chunk = pq.ParquetFile(path).metadata.row_group(row_group).column(column)
    start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
    content = bytearray(path.read_bytes())
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)


def _text(folder: Path) -> None:
    two_files()(folder)
    (folder / "b.parquet").write_text("click,price\n1,0.5\n")


def _nothing(folder: Path) -> None:
    two_files()(folder)
    (folder / "b.parquet").write_bytes(b"")


def _no_rows(folder: Path) -> None:
    two_files()(folder)
    pq.write_table(table().slice(0, 0), folder / "b.parquet")


def _no_row_groups(folder: Path) -> None:
    two_files()(folder)
    with pq.ParquetWriter(folder / "b.parquet", table().schema):
        pass


def _only_empty(folder: Path) -> None:
    pq.write_table(table().slice(0, 0), folder / "a.parquet")


def _duplicate(folder: Path) -> None:
    sound = table()
    pq.write_table(sound.append_column("user", sound["user"]), folder / "a.parquet")


def _duplicate_of_no_field(folder: Path) -> None:
    sound = table()
    twice = sound.append_column("note", sound["user"]).append_column("note", sound["user"])
    pq.write_table(twice, folder / "a.parquet")


def _many_small(folder: Path) -> None:
    for i in range(ROWS):
        pq.write_table(table().slice(i, 1), folder / f"{i}.parquet", row_group_size=1)


def _one_huge_group(folder: Path) -> None:
    pq.write_table(pa.concat_tables([table()] * 1000), folder / "a.parquet", row_group_size=1 << 20)


USERS = table()["user"].combine_chunks()
STAMPS = pa.array([datetime.datetime(2024, 2, 29, 23, 30)] * ROWS, pa.timestamp("us", tz="Europe/Berlin"))
NESTED = pa.array([[[1], [2]], [], [[]], None, [[3]], [[4]]], pa.list_(pa.list_(pa.int64())))
LISTS = [[1], [], None, [2, None], [None], [3]]
PLACES = pa.array([{"id": 1}] * ROWS, pa.struct([("id", pa.int64())]))
MAPS = pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int64()))
UUIDS = pa.ExtensionArray.from_storage(
    pa.uuid(), pa.array([b"%016d" % n for n in range(ROWS)], pa.binary(16))
)
INFINITE = math.inf
NUMBERS = pa.array([1, 2, 3, 1, 2, 5], pa.int64())

CASES: dict[str, Case] = {
    "a null in a sparse column": one_file(user=["ann", None, "cy", None, "bob", "eve"]),
    "an empty string": one_file(user=["", "bob", "cy", "ann", "bob", ""]),
    "strings in any script, with emoji and newlines": one_file(
        user=["łódź", "東京", "👩‍🚀", "a\nb", "\0", "é"]
    ),
    "a binary column that is no UTF-8": one_file(user=pa.array([b"\xff\xfe", b"", b"a", b"b", b"c", None])),
    "a sparse column without any value": one_file(user=pa.nulls(ROWS)),
    "empty lists, null lists, lists with nulls": one_file(tags=pa.array(LISTS, pa.list_(pa.int64()))),
    "lists of strings": one_file(tags=[["a"], [], None, ["b", None], ["c"], [""]]),
    "a list column without any value": one_file(tags=pa.nulls(ROWS)),
    "uint64 above 2^63": one_file(user=pa.array([2**64 - 1, 2**63, 2**63 - 1, 0, 1, 2], pa.uint64())),
    "the smallest int64": one_file(user=pa.array([-(2**63), 2**63 - 1, -1, 0, 1, 2], pa.int64())),
    "a dense null or NaN": one_file(price=pa.array([None, math.nan, 1.0, 2.0, 3.0, 4.0])),
    "a dense infinity": one_file(price=pa.array([1.0, 2.0, 3.0, 4.0, 5.0, -INFINITE])),
    "a dense infinity that no statistics tell of": _without_statistics(
        price=[1.0, 2.0, 3.0, 4.0, 5.0, INFINITE]
    ),
    "a dense value beyond float32": one_file(price=pa.array([1.0, 2.0, 3.0, 4.0, 5.0, 1e300])),
    "a dense column of a decimal type": one_file(price=pa.array([decimal.Decimal("1.50")] * ROWS)),
    "a dense column of strings": one_file(price=pa.array(["0.5"] * ROWS)),
    "a dense column of half floats": one_file(price=pa.array([0.5] * ROWS, pa.float16())),
    "a dictionary column": one_file(user=USERS.dictionary_encode()),
    "large_string": one_file(user=USERS.cast(pa.large_string())),
    "string_view with a null": one_file(
        user=pa.array(["ann", None, *USERS.to_pylist()[2:]], pa.string_view())
    ),
    "UUIDs": one_file(user=UUIDS),
    "large_list": one_file(tags=table()["tags"].cast(pa.large_list(pa.int64()))),
    "lists of lists": one_file(tags=NESTED),
    "a struct": one_file(user=PLACES),
    "a map": one_file(tags=MAPS),
    "a sparse column of floats": one_file(user=pa.array([1.0] * ROWS)),
    "a sparse column of lists": one_file(user=table()["tags"]),
    "a ragged column that is no list": one_file(tags=NUMBERS),
    "a decimal as an id": one_file(user=pa.array([decimal.Decimal(7)] * ROWS)),
    "a timestamp as an id": one_file(user=STAMPS),
    "booleans as labels": one_file(click=[True, False, True, False, False, True]),
    "floats 0.0 and 1.0 as labels": one_file(click=[1.0, 0.0, 1.0, 0.0, 0.0, 1.0]),
    "labels of 1 and 2": one_file(click=[1, 1, 1, 1, 1, 2]),
    "a label between 0 and 1": one_file(click=[1.0, 0.0, 1.0, 0.0, 0.0, 0.5]),
    "a label that is null": one_file(click=pa.array([1, 0, 1, 0, 0, None], pa.int8())),
    "labels as strings": one_file(click=["1", "0", "1", "0", "0", "1"]),
    "a column that is missing": one_file(user=None, usr=USERS),
    "a column that is missing in one file": two_files(user=None),
    "columns in another order, and further ones": _reordered,
    "a column name twice": _duplicate,
    "a column name twice that no field reads": _duplicate_of_no_field,
    "int32 in one file, int64 in the next": _files({"user": NUMBERS.cast(pa.int32())}, {"user": NUMBERS}),
    "a dictionary in one file, plain strings in the next": two_files(user=USERS.dictionary_encode()),
    "no value in one file": two_files(user=pa.nulls(ROWS), tags=pa.nulls(ROWS)),
    "integers in one file, floats in the next": _files(
        {"user": NUMBERS}, {"user": NUMBERS.cast(pa.float64())}
    ),
    "string in one file, integer in the next": two_files(user=NUMBERS),
    "lists of integers in one file, of strings in the next": two_files(tags=[["a"]] * ROWS),
    "an empty file among full ones": _nothing,
    "a file without rows among full ones": _no_rows,
    "a file without row groups": _no_row_groups,
    "no row in any file": _only_empty,
    "a truncated file": _truncated,
    "damaged pages": _damaged,
    "a file that is no Parquet": _text,
    "a folder without data": lambda _: None,
    "many files of one row": _many_small,
    "all rows in one row group": _one_huge_group,
}
