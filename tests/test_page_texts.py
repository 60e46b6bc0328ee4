"""Columns of strings by their dictionaries' pages, beside what Arrow wrote."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.data import chunk_pages
from pslib.data.chunk_pages import ChunkPages, _zstd_size
from tests.test_page_columns import CODECS, read, written

KINDS = st.sampled_from([pa.string(), pa.binary()])
TEXTS = st.none() | st.sampled_from(["", "a", "b", "é", "sixteen letters!", "more than sixteen letters"])


def check(table: pa.Table, rows: int, **options: object) -> int:
    """What is read is what was written, as places in dictionaries; gives how often Arrow was asked."""
    found, asked = read(written(table, **options), rows, coded=table.column_names)
    assert sum(map(len, found)) == len(table)
    for name in table.column_names:
        columns = [batch.column(name) for batch in found]
        assert {column.type for column in columns} == {pa.dictionary(pa.int32(), table[name].type)}
        for column in columns:
            column.validate(full=True)
        assert pa.chunked_array([column.cast(table[name].type) for column in columns]).equals(table[name])
    return asked


@given(
    st.lists(TEXTS, min_size=1, max_size=30), st.booleans(), KINDS, st.sampled_from([1, 7, 1000]),
    st.sampled_from(["1.0", "2.0"]), st.sampled_from(CODECS), st.sampled_from([50, 1 << 20]),
    st.sampled_from([40, 10_000]),
)  # fmt: skip
def test_strings_are_those_that_were_written(
    texts: list[str | None],
    optional: bool,
    kind: pa.DataType,
    rows: int,
    version: str,
    codec: str,
    page: int,
    group: int,
) -> None:
    column = pa.array(texts * 30 if optional else [text or "" for text in texts] * 30, pa.string())
    table = pa.table([column.cast(kind)], schema=pa.schema([pa.field("t", kind, optional)]))
    asked = check(
        table, rows, data_page_version=version, compression=codec, data_page_size=page, row_group_size=group,
        write_batch_size=7,
    )  # fmt: skip
    assert asked == 0


@pytest.mark.parametrize("piece", [200, 1 << 20])
def test_a_column_whose_dictionary_grew_too_large_is_arrows_in_that_row_group(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first pages have places all the same, and the row groups behind it are read from their pages."""
    monkeypatch.setattr(chunk_pages, "READ_BYTES", piece)
    texts = [f"{i % 5 if i >= 300 else i}" for i in range(900)]
    options = {"row_group_size": 300, "data_page_size": 100, "write_batch_size": 10}
    table = pa.table({"t": texts})
    assert check(table, 20, **options, dictionary_pagesize_limit=100) == 1
    assert check(table, 20, **options) == 0
    beside = pa.table({"t": texts, "few": [f"{i % 5}" for i in range(900)]})
    assert check(beside, 20, **options, dictionary_pagesize_limit=100) == 1
    assert check(table, 100, use_dictionary=False) == 1


def test_strings_that_nobody_wants_as_places_are_arrows() -> None:
    found, asked = read(written(pa.table({"t": ["a", "b", "a"], "n": [1, 2, 3]})), 2)
    assert [batch.to_pydict() for batch in found] == [{"t": ["a", "b"], "n": [1, 2]}, {"t": ["a"], "n": [3]}]
    assert asked == 1


@given(st.integers(0, 1 << 30), st.integers(0, 255), st.sampled_from(["none", "zstd"]))
def test_damaged_strings_are_read_or_refused_as_arrow_does_it(place: int, byte: int, codec: str) -> None:
    names = [f"name {i % 40}" for i in range(300)]
    data = bytearray(
        written(pa.table({"t": names}), compression=codec, data_page_size=50, write_batch_size=10)
    )
    end = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(0).column(0).total_compressed_size
    data[4 + place % end] = byte
    try:
        found, _ = read(bytes(data), 64, coded=["t"])
    except (OSError, pa.ArrowException):
        return
    if (rows := sum(map(len, found))) != 300:  # Arrow stops at a page without a name, and says nothing
        file = pq.ParquetFile(pa.BufferReader(bytes(data)), read_dictionary=["t"])
        assert rows == sum(map(len, file.iter_batches(64)))


def pages_of(data: bytes) -> ChunkPages:
    """Those of the first column, of int64."""
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    return ChunkPages(pa.BufferReader(data), chunk, np.dtype(np.int64), False, (False, False))


def test_pages_are_decompressed_together() -> None:
    """As many as there are, or one at a time, they hold the same; one that holds less is found out."""
    numbers = pa.table([pa.array(range(100))], schema=pa.schema([pa.field("n", pa.int64(), False)]))
    options = {"use_dictionary": False, "data_page_size": 80, "write_batch_size": 10, "compression": "zstd"}
    data = written(numbers, **options)
    pages, seen = pages_of(data), []
    while pages.left:
        header, body = pages.next()
        seen += np.frombuffer(body, np.int64, header.values).tolist()
    assert seen == list(range(100))
    for lies in ({3: 1}, {3: 8, 4: -8}):  # together they are right, alone none of them
        cut = pages_of(data)
        cut._find_some()
        for place, more in lies.items():
            header, body = cut._found[place]
            cut._found[place] = header._replace(plain_bytes=header.plain_bytes + more), body
        with pytest.raises(OSError, match="ZSTD"):
            [cut.next() for _ in range(10)]


@pytest.mark.parametrize("size", [0, 1, 100, 255, 256, 257, 65_791, 65_792, 1 << 20])
@pytest.mark.parametrize("level", [1, 19])
def test_a_frame_says_how_much_it_holds(size: int, level: int) -> None:
    frame = pa.Codec("zstd", level).compress(bytes(size), asbytes=True)
    assert _zstd_size(memoryview(frame + bytes(14))) == size
    assert _zstd_size(memoryview(frame[:5])) == -1
    assert _zstd_size(memoryview(frame[1:] + bytes(14))) == -1
