"""Columns of numbers read from their pages, beside what Arrow wrote."""

from __future__ import annotations

import io
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pslib.data import chunk_pages
from pslib.data.chunk_pages import ChunkPages, Header, NotUnderstoodError
from pslib.data.pages import MADE, PageColumns, _ListsOf
from tests.test_pages import hybrid

NUMBERS = [pa.int32(), pa.uint32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()]
LISTS = [pa.list_(kind) for kind in NUMBERS[:4]]
CODECS = ["none", "snappy", "zstd", "gzip"]


class Counted:
    """A file that counts how often Arrow is asked for rows of it."""

    def __init__(self, source: pa.NativeFile, coded: list[str] | None = None) -> None:
        self._file = pq.ParquetFile(source, read_dictionary=coded)
        self.metadata, self.schema_arrow, self.asked = self._file.metadata, self._file.schema_arrow, 0

    def iter_batches(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        return self._file.iter_batches(*arguments, **options)


def written(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def read(
    data: bytes,
    rows: int,
    columns: list[str] | None = None,
    narrow: bool = False,
    coded: list[str] | None = None,
) -> tuple[list[pa.RecordBatch], int]:
    """All batches, and how often Arrow was asked."""
    source = pa.BufferReader(data)
    file = Counted(source, coded)
    names = columns or file.schema_arrow.names
    ours = PageColumns(file, source, names, narrow)  # type: ignore[arg-type]
    groups = range(file.metadata.num_row_groups)
    return [batch for group in groups for batch in ours.batches(group, rows)], file.asked


def check(table: pa.Table, rows: int, narrow: bool = False, **options: Any) -> int:
    """What is read is what was written; gives how often Arrow was asked."""
    found, asked = read(written(table, **options), rows, narrow=narrow)
    assert sum(map(len, found)) == len(table)
    assert all(len(batch) <= rows for batch in found)
    for name in table.column_names:
        columns = [batch.column(name) for batch in found]
        assert narrow or all(column.type == table[name].type for column in columns)
        if pa.chunked_array([column.cast(table[name].type) for column in columns]).equals(table[name]):
            continue  # null lists come as empty ones, which nobody tells apart
        got = [value for batch in found for value in batch.column(name).to_pylist()]
        wanted = [
            value or [] if pa.types.is_list(table[name].type) else value for value in table[name].to_pylist()
        ]
        assert [value or [] if pa.types.is_list(table[name].type) else value for value in got] == wanted
    return asked


def numbers(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Few of them, so that dictionaries have something to do."""
    ends = {pa.int32(): -(2**31), pa.uint32(): 2**32 - 1, pa.int64(): -(2**63), pa.uint64(): 2**64 - 1}
    return st.sampled_from([0, 1, 2, 300, 70_000, ends.get(kind, -2)])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Columns of numbers and of lists, some of them with nulls, repeated until they fill several pages."""
    count, times = draw(st.integers(1, 30)), draw(st.sampled_from([1, 3, 100]))
    columns, fields = [], []
    for i, kind in enumerate(draw(st.lists(st.sampled_from(NUMBERS + LISTS), min_size=1, max_size=3))):
        optional = draw(st.booleans())
        is_list = pa.types.is_list(kind)
        value = st.lists(numbers(kind.value_type), max_size=5) if is_list else numbers(kind)
        values = draw(st.lists(st.none() | value if optional else value, min_size=count, max_size=count))
        inner = pa.field("element", kind.value_type, draw(st.booleans())) if is_list else None
        field = pa.field(f"c{i}", pa.list_(inner) if inner else kind, optional)
        columns.append(pa.array(values * times, field.type))
        fields.append(field)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


@given(
    tables(), st.sampled_from([1, 7, 1000]), st.sampled_from(["1.0", "2.0"]), st.sampled_from(CODECS),
    st.booleans(), st.sampled_from([50, 1 << 20]), st.sampled_from([8, 1 << 20]),
    st.sampled_from([40, 10_000]), st.booleans(),
)  # fmt: skip
def test_what_is_read_from_pages_is_what_was_written(
    table: pa.Table,
    rows: int,
    version: str,
    codec: str,
    coded: bool,
    page: int,
    dictionary: int,
    group: int,
    narrow: bool,
) -> None:
    """Pages of a few values and of all, of both versions, plain and coded, or coded up to somewhere."""
    asked = check(
        table, rows, narrow, data_page_version=version, compression=codec, use_dictionary=coded,
        data_page_size=page,
        dictionary_pagesize_limit=dictionary, row_group_size=group, write_batch_size=7,
    )  # fmt: skip
    assert asked == 0


def large(rows: int = 70_000) -> pa.Table:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, rows)
    lists = pa.ListArray.from_arrays(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        rng.integers(0, 3000, lengths.sum()).astype(np.int32),
    )
    plain, few = rng.integers(-(1 << 62), 1 << 62, rows), rng.integers(0, 9, rows)
    some = pa.array(few, mask=rng.random(rows) < 0.3)
    return pa.table({"plain": plain, "few": few, "some": some, "lists": lists, "x": rng.random(rows)})


@pytest.mark.parametrize("group", [70_000, 30_000])
@pytest.mark.parametrize("rows", [65_536, 1_000])
def test_so_it_is_over_many_pages_and_batches(group: int, rows: int) -> None:
    assert check(large(), rows, row_group_size=group) == 0


def test_integers_may_be_narrower_while_their_dictionary_is() -> None:
    """Batches of codes, of plain values, of both, and of the next row group's codes."""
    values = [2**32 - 1] * 30 + [-1, 2**32, *range(38)] + [7] * 30
    table = pa.table({"n": pa.array(values, pa.int64())})
    options = {
        "data_page_size": 1,
        "write_batch_size": 10,
        "dictionary_pagesize_limit": 1,
        "row_group_size": 70,
    }
    found, _ = read(written(table.slice(0, 30)), 10, narrow=True)
    assert {batch.column("n").type for batch in found} == {pa.uint32()}
    found, _ = read(written(table, **options), 5, narrow=True)
    assert {batch.column("n").type for batch in found} == {pa.uint32(), pa.int64()}
    assert check(table, 15, narrow=True, **options) == 0
    wide, _ = read(written(pa.table({"n": [-1, 1], "m": [1 << 32, 1]})), 10, narrow=True)
    assert wide[0].schema.types == [pa.int64()] * 2
    assert check(table, 15, **options) == 0


@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("limit", [8, 1 << 20])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_is_made_of_integers_is_made_of_each_in_a_dictionary_once(
    coded: bool, limit: int, codec: str
) -> None:
    """Of plain ones too, not of floats, and where Arrow reads a column it is what the file has."""
    seen = 0

    def doubled(values: NDArray[Any]) -> NDArray[Any]:
        nonlocal seen
        seen += values.size
        return (2 * values).astype(np.float32)

    numbers = [None if i % 7 == 0 else i % 13 for i in range(600)]
    table = pa.table({"n": pa.array(numbers, pa.int64()), "x": np.arange(600) % 5 / 2, "m": numbers})
    data = written(
        table, use_dictionary=coded, dictionary_pagesize_limit=limit, data_page_size=100, write_batch_size=50,
        compression=codec,
    )  # fmt: skip
    source = pa.BufferReader(data)
    ours = PageColumns(pq.ParquetFile(source), source, table.column_names, made={"n": doubled, "x": doubled})
    found = list(ours.batches(0, 70))
    made = [batch.schema.field("n").metadata == MADE for batch in found]
    assert made == [codec == "zstd"] * len(found)
    got = [value for batch in found for value in batch.column("n").to_pylist()]
    assert got == [None if one is None else 2 * one if codec == "zstd" else one for one in numbers]
    for name in ("x", "m"):
        assert [one for batch in found for one in batch.column(name).to_pylist()] == table[name].to_pylist()
    assert seen == (0 if codec == "lz4" else 13 if coded and limit > 8 else seen)


def test_columns_of_other_kinds_come_from_arrow_beside_them() -> None:
    others = {
        "text": pa.array(["a", None, "b"]), "small": pa.array([1, 2, 3], pa.int8()),
        "flag": pa.array([True, False, None]),
        "texts": pa.array([["a"], [], None]), "inner": pa.array([[[1]], [], [[2, 3]]]),
        "pair": pa.array([{"a": 1}, {"a": 2}, None]), "floats": pa.array([[1.5], None, []]),
    }  # fmt: skip
    table = pa.table({**others, "n": pa.array([5, None, 7]), "pair.a": pa.array([7, 8, 9])})
    assert check(table, 2) == 1  # once for all of them
    found, asked = read(written(table), 3, ["pair.a", "n"])  # a column of that name, and a part of another
    assert [batch.to_pydict() for batch in found] == [{"pair.a": [7, 8, 9], "n": [5, None, 7]}]
    assert asked == 1
    found, _ = read(written(table), 3, ["n", "text"])
    assert found[0].schema.names == ["n", "text"]


def test_what_turns_out_later_goes_on_with_arrow_where_it_stopped() -> None:
    """A null element is in the last page only, and batches before it have been given."""
    lists = [[i, i + 1] for i in range(500)] + [[7, None]]
    table = pa.table({"lists": pa.array(lists, pa.list_(pa.int64())), "n": pa.array(range(501))})
    for rows in (30, 1000):
        assert check(table, rows, data_page_size=64, write_batch_size=10, use_dictionary=False) == 1


def test_encodings_that_are_not_understood_are_arrows() -> None:
    table = pa.table({"n": pa.array(range(100)), "m": pa.array(range(100))})
    encoding = {"n": "DELTA_BINARY_PACKED", "m": "PLAIN"}
    assert check(table, 30, use_dictionary=False, column_encoding=encoding) == 1
    assert (
        check(table, 30, use_dictionary=False, column_encoding=dict.fromkeys("nm", "BYTE_STREAM_SPLIT")) == 1
    )
    assert check(table, 30, compression="lz4") == 1


def test_pages_that_are_large_are_arrows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_pages, "PAGE_BYTES_MAX", 1000)
    assert check(large(2000), 500, use_dictionary=False) == 1


def test_the_file_is_read_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_pages, "READ_BYTES", 100)
    assert check(large(2000), 500, data_page_size=300, write_batch_size=10) == 0


@given(st.integers(0, 1 << 30), st.integers(0, 255), st.sampled_from(["none", "snappy"]))
def test_a_damaged_file_is_read_or_refused_as_arrow_does_it(place: int, byte: int, codec: str) -> None:
    table = large(300)
    data = bytearray(written(table, compression=codec, data_page_size=200, write_batch_size=10))
    end = min(
        pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(0).total_byte_size, len(data) - 2000
    )
    data[4 + place % end] = byte
    try:
        found, _ = read(bytes(data), 64)
    except (OSError, pa.ArrowException):
        return
    assert sum(map(len, found)) == 300


def test_a_file_that_is_cut_off_says_so_in_arrows_words(tmp_path: Path) -> None:
    data = written(large(300))
    source = pa.BufferReader(data)
    file = pq.ParquetFile(source)
    half = pa.BufferReader(data[: len(data) // 3])
    ours = PageColumns(file, half, ["plain"])
    assert sum(map(len, ours.batches(0, 100))) == 300  # Arrow has all of it
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    with pa.OSFile(str(path)) as opened:
        cut = PageColumns(pq.ParquetFile(opened), opened, ["plain", "x"])
        path.write_bytes(data[:200])
        with pytest.raises((OSError, pa.ArrowException)):
            list(cut.batches(0, 100))


class Given:
    """Pages of lists, as repetition levels and elements: some writers let a list go on in the next page."""

    def __init__(self, *given: tuple[list[int], list[int]]) -> None:
        self.given, self.left = list(given), sum(len(repeated) for repeated, _ in given)

    def next(self) -> tuple[Header, bytes]:
        repeated, elements = self.given.pop(0)
        self.left -= len(repeated)
        levels = hybrid([(repeated, True)], 1), hybrid([([1] * len(repeated), False)], 1)
        body = b"".join(levels) + np.array(elements, np.int64).tobytes()
        return Header(0, 3, 0, 0, len(repeated), 0, 3, 3, len(levels[1]), len(levels[0]), 0), body

    def dictionary_for(self, header: Header) -> None:
        """They are plain."""


def test_a_list_may_go_on_in_the_next_page() -> None:
    pages = Given(([0, 0, 1], [1, 2, 3]), ([1, 1], [4, 5]), ([1, 0], [6, 7]))
    lists = _ListsOf(pages, pa.list_(pa.int64()), 1, 0)  # type: ignore[arg-type]
    assert [lists.take(1).to_pylist() for _ in range(3)] == [[[1]], [[2, 3, 4, 5, 6]], [[7]]]


def column_of(header: Header, levels: tuple[bool, bool], codec: str | None = None) -> ChunkPages:
    """The pages of a column with one more page of data, of this header."""
    made = ChunkPages.__new__(ChunkPages)
    made._defined, made._repeated = levels
    made.left, made.dictionary = header.values, None
    made._codec = None if codec is None else pa.Codec(codec)
    made._ready = deque([(header, b"")])
    return made


V1, V2 = (0, 0, 80, 80, 10, 0), (0, 3, 90, 90, 10, 0)
UNLIKELY_LEVELS = {
    "version 1, levels that a column has not are said to be packed": (
        V1,
        (4, 4, -1, -1),
        (False, False),
        True,
    ),
    "so is one of two": (V1, (3, 4, -1, -1), (True, False), True),
    "version 1, levels that it has are packed": (V1, (4, 3, -1, -1), (True, False), False),
    "packed repetition levels of lists": (V1, (3, 4, -1, -1), (True, True), False),
    "version 1, with sizes of levels as version 2 has them": (V1, (3, 3, 5, 0), (True, False), False),
    "less than no bytes there": (V1, (3, 3, -2, -1), (True, False), False),
    "version 2, bytes of levels that a column has": (V2, (-1, -1, 2, 0), (True, False), True),
    "bytes of definition levels that it has not": (V2, (-1, -1, 2, 0), (False, False), False),
    "bytes of repetition levels that it has not": (V2, (-1, -1, 2, 2), (True, False), False),
    "less than no bytes": (V2, (-1, -1, -2, 0), (True, False), False),
    "more bytes than the page has": (V2, (-1, -1, 80, 11), (True, True), False),
    "more than it has decompressed": ((0, 3, 80, 90, 10, 0), (-1, -1, 80, 5), (True, True), False),
    "more than it has compressed": ((0, 3, 90, 80, 10, 0), (-1, -1, 80, 5), (True, True), False),
}


@pytest.mark.parametrize("case", UNLIKELY_LEVELS)
def test_levels_that_are_not_as_expected_are_arrows(case: str) -> None:
    """Some writers put levels where a column has none (ARROW-17453): as values they would be wrong."""
    start, levels, has, understood = UNLIKELY_LEVELS[case]
    found = column_of(Header(*start, *levels, 0), has)
    if understood:
        assert found.next()[0].values == 10
    else:
        with pytest.raises(NotUnderstoodError):
            found.next()


@pytest.mark.parametrize("codec", ["snappy", "gzip"])
@pytest.mark.parametrize("said", [80, 88, 200])
def test_a_page_that_holds_less_than_it_says_is_arrows(codec: str, said: int) -> None:
    """Arrow's codecs leave the rest of the memory as it was, and say nothing."""
    plain = np.arange(10, dtype=np.int64).tobytes()
    body = memoryview(pa.Codec(codec).compress(plain, asbytes=True))
    found = column_of(Header(0, 0, said, len(body), 10, 0, 3, 3, -1, -1, 1), (False, False), codec)
    if said == len(plain):
        assert bytes(found._decompressed(body, said)) == plain
    else:
        with pytest.raises(NotUnderstoodError):
            found._decompressed(body, said)


def test_no_memory_is_taken_for_a_page_whose_levels_are_less_than_no_bytes() -> None:
    header = Header(0, 3, 90, 90, 10, 0, -1, -1, -(1 << 40), 0, 1)
    with pytest.raises(NotUnderstoodError):
        column_of(header, (True, False), "zstd")._plain(header, memoryview(bytes(90)))


@pytest.mark.parametrize("codec", [8, 22, 60])
def test_a_codec_that_the_format_has_not_is_refused_in_arrows_words(codec: int) -> None:
    """Asked for its name, pyarrow ends the process."""
    table = pa.table({"n": np.arange(9)})
    data = written(table, compression="none", use_dictionary=False, write_statistics=False)
    before = b"\x18\x01n\x15"  # the path of the column, then the field of its codec
    assert data.count(before + b"\0") == 1
    source = pa.BufferReader(data.replace(before + b"\0", before + bytes([2 * codec])))
    with pytest.raises(OSError, match="codec"):
        list(PageColumns(pq.ParquetFile(source), source, ["n"]).batches(0, 10))


def test_a_page_of_levels_alone_has_no_values_behind_them() -> None:
    """What follows the levels is compressed still: as places it would be others' strings."""
    header = Header(0, 3, 5, 25, 10, 0, -1, -1, 5, 0, 1)
    assert bytes(column_of(header, (True, False), "snappy")._plain(header, memoryview(bytes(25)))) == bytes(5)


@pytest.mark.parametrize(("at", "size"), [(4, -1), (-1, 100)])
def test_a_column_that_lies_nowhere_is_arrows(at: int, size: int) -> None:
    chunk = SimpleNamespace(
        dictionary_page_offset=None, data_page_offset=at, total_compressed_size=size, num_values=1,
        compression="ZSTD",
    )  # fmt: skip
    with pytest.raises(NotUnderstoodError):
        ChunkPages(pa.BufferReader(b""), chunk, np.dtype(np.int64), False, (False, False))


def test_a_column_that_is_not_understood_once_is_arrows_in_the_groups_to_come() -> None:
    rows = [[1, 2]] * 50 + [[None]] + [[3]] * 149
    table = pa.table({"list": pa.array(rows, pa.list_(pa.int64())), "x": np.arange(200)})
    assert (
        check(table, 30, row_group_size=40) == 1 + 3
    )  # the second group whole, the lists of the other three


def test_of_a_file_that_is_far_away_arrow_reads_all() -> None:
    """It asks for a row group at once; page by page each piece would be waited for."""
    source = pa.BufferReader(written(pa.table({"x": np.arange(500)}), row_group_size=100))
    file = Counted(source)
    far = PageColumns(file, source, ["x"], far=True)  # type: ignore[arg-type]
    assert sum(len(batch) for group in range(5) for batch in far.batches(group, 1000)) == 500
    assert file.asked == 5
