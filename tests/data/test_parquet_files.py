"""Files of an object store are opened ahead, in the order that was told; damage to any file is told."""

import base64
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyarrow.parquet.encryption import CryptoFactory, EncryptionConfiguration, KmsClient, KmsConnectionConfig

from launch.job.job import read_job
from launch.job.preflight import check_data
from pslib import storage
from pslib.data import LeaseReader, Order, ParquetData
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.data.parquet_files import AHEAD, OpenedAhead, open_file, parquet_from
from pslib.errors import DataError
from pslib.schema import Schema
from pslib.storage import open_uri
from tests.support.waiting import PATIENCE_S

FAR = [f"s3://bucket/{i}" for i in range(3 * AHEAD)]


class Opened:
    """Stands for a Parquet file."""

    def __init__(self, name: str) -> None:
        self.name, self.closed = name, False

    def close(self, force: bool) -> None:
        self.closed = force


def ahead_of(open_one: object) -> OpenedAhead:
    return OpenedAhead(open_one)  # type: ignore[arg-type]


def noting() -> tuple[OpenedAhead, list[str]]:
    """One that opens anything, and the names in the order in which it began to."""
    begun: list[str] = []

    def open_one(name: str) -> Opened:
        begun.append(name)
        return Opened(name)

    return ahead_of(open_one), begun


def test_so_many_files_are_opened_at_once() -> None:
    """Each opening waits for the others: one after the other they would never end."""
    together = threading.Barrier(AHEAD)

    def open_one(name: str) -> Opened:
        together.wait(PATIENCE_S)
        return Opened(name)

    ahead = ahead_of(open_one)
    ahead.expect(FAR[:AHEAD])
    assert [ahead.open(name).name for name in FAR[:AHEAD]] == FAR[:AHEAD]  # type: ignore[attr-defined]
    ahead.close()


def test_no_more_than_those_are_open_before_they_are_wanted() -> None:
    ahead, begun = noting()
    ahead.expect(FAR)
    for i, name in enumerate(FAR):
        ahead.open(name)
        assert len(begun) <= i + 1 + AHEAD
    assert sorted(begun) == sorted(FAR)
    ahead.close()


def test_files_on_a_disk_are_opened_when_they_are_wanted_and_so_is_one_that_was_not_expected() -> None:
    ahead, begun = noting()
    ahead.expect(["a", "file:///b", "c"])
    ahead.open("c")
    ahead.open("s3://bucket/other")
    assert begun == ["c", "s3://bucket/other"]
    ahead.close()


def test_an_error_comes_where_its_file_is_asked_for() -> None:
    def open_one(name: str) -> Opened:
        if name == FAR[1]:
            raise OSError("gone")
        return Opened(name)

    ahead = ahead_of(open_one)
    ahead.expect(FAR[:3])
    ahead.open(FAR[0])
    with pytest.raises(OSError, match="gone"):
        ahead.open(FAR[1])
    assert ahead.open(FAR[2]).name == FAR[2]  # type: ignore[attr-defined]
    ahead.close()


def test_what_was_opened_and_not_asked_for_is_closed() -> None:
    every: list[Opened] = []

    def open_one(name: str) -> Opened:
        if name == FAR[3]:
            raise OSError("gone, and nobody asked")
        every.append(Opened(name))
        return every[-1]

    ahead = ahead_of(open_one)
    ahead.expect(FAR[:AHEAD])
    mine = ahead.open(FAR[0])
    ahead.expect(FAR[AHEAD : AHEAD + 2])
    assert all(one.closed for one in every if one is not mine)
    ahead.close()


def test_a_source_that_is_no_parquet_is_closed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text")
    source = open_file(str(tmp_path / "a"))
    with pytest.raises(pa.ArrowInvalid):
        parquet_from(source)
    assert source.closed


def test_uris_of_one_store_share_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_FILESYSTEMS", {})
    query = "endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    one, inner = open_uri(f"s3://key:secret@bucket/a%20b/c?{query}")
    same, other = open_uri(f"s3://key:secret@bucket/d?{query}")
    assert one is same
    assert (inner, other) == ("bucket/a b/c", "bucket/d")
    assert open_uri(f"s3://other:secret@bucket/d?{query}")[0] is not one
    assert open_uri(f"s3://key:secret@bucket/d?{query}".replace("us-east-1", "eu-west-1"))[0] is not one


@pytest.mark.parametrize(
    "inside",
    ["/", "/a", "/a/b.parquet", "/a/day=1/", "/a%20b/c", "/a//b", "/a+b", "/%C3%BC", "/a~b"],
)
@pytest.mark.parametrize("store", ["s3://key:secret@bucket", "file://"])
def test_a_path_is_the_same_whether_its_store_is_known_or_not(store: str, inside: str) -> None:
    """Once a store is known, plain paths are taken from the URI: pyarrow gives the same path for each."""
    query = "" if store == "file://" else "?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    for before in (inside, "/known/before", "/a%20b"):
        storage._FILESYSTEMS.clear()
        open_uri(store + before + query)
        said = fs.FileSystem.from_uri(store + inside + query)[1].rstrip("/")
        assert open_uri(store + inside + query)[1] == said


def test_few_stores_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_FILESYSTEMS", {})
    monkeypatch.setattr(storage, "FILESYSTEMS_MAX", 2)
    for i in range(5):
        open_uri(f"s3://key:secret@bucket{i}/d?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1")
        assert len(storage._FILESYSTEMS) <= 2


SHORT = Schema(label="click", sparse=["user"])
ROWS = 2000


def _rows_of(data: bytes, column: str) -> int:
    try:
        return sum(map(len, pq.ParquetFile(pa.BufferReader(data)).iter_batches(columns=[column])))
    except (OSError, pa.ArrowException):
        return -1


def _short_column(path: Path, column: str) -> None:
    """Damage the header of a page so that Arrow gives fewer rows of a column, without an error."""
    sound = path.read_bytes()
    names = pq.read_schema(path).names
    start = pq.read_metadata(path).row_group(0).column(names.index(column)).data_page_offset
    for place, bit in product(range(start, start + 40), range(8)):
        bad = bytearray(sound)
        bad[place] ^= 1 << bit
        if 0 <= _rows_of(bytes(bad), column) < ROWS:
            path.write_bytes(bad)
            return
    pytest.fail("expected a bit of the page header with which pyarrow gives fewer rows, got none")


def _long_footer(path: Path, _column: str) -> None:
    """Let the footer claim a row more than there is: in the file, in its row group and its columns."""
    number = (b"\x16\xa0\x1f", b"\x16\xa2\x1f")  # 2,000 and 2,001 as Thrift has them
    path.write_bytes(path.read_bytes().replace(*number))


@pytest.mark.parametrize(
    ("damage", "column"), [(_short_column, "user"), (_short_column, "click"), (_long_footer, "click")]
)
def test_fewer_rows_than_the_footer_says_are_damage_to_a_check_and_a_training_and_end_nothing_else(
    tmp_path: Path, damage: Callable[[Path, str], None], column: str
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {"click": np.arange(ROWS) % 2, "user": np.arange(ROWS) % 900, "more": ["x", "y"] * (ROWS // 2)}
    )
    pages = {"data_page_version": "2.0", "data_page_size": 50, "write_batch_size": 50}
    pq.write_table(table, path, compression="none", use_dictionary=["more"], **pages)
    damage(path, column)
    data = ParquetData(path, SHORT)
    words = rf"column '{column}'.*\(expected {data.rows:,} rows, as its footer says, got [\d,]+\)"
    for schema in (None, SHORT):
        assert any(re.search(words, problem) for problem in check(path, schema).problems)
    reader = LeaseReader(data, SHORT, Order(0, [data.rows], data.rows), data.rows)
    with pytest.raises(DataError, match=words):
        next(reader.batches(0, 0))
    (tmp_path / "job.yaml").write_text(
        f"data: {{train: {path}, schema: {{label: click, sparse: [user]}}}}\nmodel: {{name: lr}}\n"
    )
    with pytest.raises(DataError, match=words) if column == "click" else nullcontext():
        check_data(read_job(tmp_path / "job.yaml"))
    with suppress(DataError):
        describe(path)


class Kms(KmsClient):  # type: ignore[misc]
    """Gives keys as they are."""

    def __init__(self, _config: object) -> None:
        KmsClient.__init__(self)

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(key)


@pytest.mark.parametrize("column", ["price", "click", "user"])
def test_an_encrypted_column_is_told_where_it_is_read_and_no_matter_elsewhere(
    tmp_path: Path, column: str
) -> None:
    """pyarrow ends the process that asks for the metadata of such a column."""
    path = tmp_path / "a.parquet"
    table = pa.table({"click": [0, 1] * 500, "user": [*range(50)] * 20, "price": np.arange(1000) / 7})
    how = EncryptionConfiguration("footer", column_keys={"key": [column]}, plaintext_footer=True)
    keys = CryptoFactory(Kms).file_encryption_properties(KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)
    words = f"column '{column}'.*it is encrypted, and pslib takes no keys"
    job = tmp_path / "job.yaml"
    for schema in ("{label: click, sparse: [user], dense: [price]}", "{label: click, sparse: [user]}"):
        job.write_text(f"data: {{train: {path}, schema: {schema}}}\nmodel: {{name: lr}}\n")
        read = column in schema
        with pytest.raises(DataError, match=words) if read else nullcontext():
            check_data(read_job(job))
        problems = check(path, read_job(job).data.schema).problems
        assert [bool(re.search(words, problem)) for problem in problems] == [True] * read
    with suppress(DataError):
        assert any(re.search(words, problem) for problem in describe(path).report.problems)
