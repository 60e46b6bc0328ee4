"""Pages of a Parquet column, beside runs and levels that are packed by hand."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cython_ext.pages import codecs_known, flat_page, list_page, page_headers, plain_texts
from pslib.schema import Schema
from tests.lease_readers import reader_of

OUT, VALID, ENDS = np.empty(2, np.int64), np.empty(2, np.uint8), np.zeros(4, np.int32)


def hybrid(runs: list[tuple[list[int], bool]], width: int) -> bytes:
    """Runs as Parquet packs them: of one value, or of eight values at a time with the lowest bits first."""
    out = b""
    for values, packed in runs:
        count = -(-len(values) // 8) if packed else len(values)
        header, parts = 2 * count + packed, []
        while header > 127:
            parts.append(header & 127 | 128)
            header >>= 7
        bits = sum(value << width * i for i, value in enumerate(values if packed else values[:1]))
        out += bytes([*parts, header]) + bits.to_bytes(count * width if packed else -(-width // 8), "little")
    return out


@st.composite
def some_runs(draw: st.DrawFn, width: int, most: int) -> list[tuple[list[int], bool]]:
    """Each of one value, or packed: of full groups of eight but for the last one."""
    value = st.integers(0, min(most, (1 << width) - 1))
    same = st.tuples(value, st.integers(1, 300)).map(lambda one: ([one[0]] * one[1], False))
    packed = (
        st.integers(1, 9)
        .flatmap(lambda n: st.lists(value, min_size=8 * n, max_size=8 * n))
        .map(lambda v: (v, True))
    )
    runs = draw(st.lists(same | packed, min_size=1, max_size=4))
    last, is_packed = runs[-1]
    return [*runs[:-1], (last[: len(last) - draw(st.integers(0, 7))] if is_packed else last, is_packed)]


@given(st.data(), st.integers(0, 32), st.sampled_from([np.uint32, np.uint64]))
def test_places_of_any_width_are_looked_up(data: st.DataObject, width: int, kind: type[Any]) -> None:
    known = min(1 << width, 5000)
    table = np.random.default_rng(width).integers(0, 1 << 32, known).astype(kind)
    runs = data.draw(some_runs(width, known - 1))
    places = [place for values, _ in runs for place in values]
    body = bytes([width]) + hybrid(runs, width)
    out, valid = np.empty(len(places), kind), np.empty(len(places), np.uint8)
    assert flat_page(body, len(places), -1, False, table, out, valid) == 0
    assert out.tolist() == table[places].tolist()
    assert valid.all()
    for cut in range(len(body)):
        assert flat_page(body[:cut], len(places), -1, False, table, out, valid) == -1


@given(st.data())
def test_values_stand_where_levels_say_so(data: st.DataObject) -> None:
    levels_runs = data.draw(some_runs(1, 1))
    levels = [level for values, _ in levels_runs for level in values]
    values = np.arange(1, sum(levels) + 1)
    packed = hybrid(levels_runs, 1)
    for told, before in ((-1, len(packed).to_bytes(4, "little")), (len(packed), b"")):
        out, valid = np.empty(len(levels), np.int64), np.empty(len(levels), np.uint8)
        body = before + packed + values.tobytes()
        assert flat_page(body, len(levels), told, True, None, out, valid) == len(levels) - values.size
        assert valid.tolist() == levels
        assert out[valid == 1].tolist() == values.tolist()
        assert values.size == 0 or flat_page(body[:-1], len(levels), told, True, None, out, valid) == -1


def test_a_dictionary_without_values_has_none_to_be_placed() -> None:
    nulls = len(hybrid([([0, 0], False)], 1)).to_bytes(4, "little") + hybrid([([0, 0], False)], 1)
    assert flat_page(nulls, 2, -1, True, OUT[:0], OUT, VALID) == 2
    assert flat_page(b"\0" + hybrid([([0, 0], False)], 0), 2, -1, False, OUT[:0], OUT, VALID) == -1


def by_definition(repeated: list[int], defined: list[int], most: int) -> list[int]:
    """Where lists end: what is not repeated begins one, what has the highest level is an element."""
    begins = np.flatnonzero(np.array([*repeated, 0]) == 0)
    return np.concatenate([[0], np.cumsum(np.array(defined) == most)])[begins].tolist()


@given(st.data(), st.integers(1, 3))
def test_lists_end_where_levels_say_so(data: st.DataObject, most: int) -> None:
    empty = data.draw(st.integers(0, most - 1))
    lengths = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=30))
    repeated = [int(i > 0) for length in lengths for i in range(max(1, length))]
    defined = [
        most if length else data.draw(st.integers(0, empty))
        for length in lengths
        for _ in range(max(1, length))
    ]
    width = most.bit_length()
    parts = [hybrid([(repeated, True)], 1), hybrid([(defined, True)], width)]
    values = np.arange(sum(lengths), dtype=np.int32)
    body = b"".join(parts) + values.tobytes()
    out, ends = np.empty(len(repeated), np.int32), np.zeros(len(repeated) + 1, np.int32)
    told = (len(parts[0]), len(parts[1]))
    assert list_page(body, len(repeated), told, most, empty, None, out, ends, 0) == len(lengths)
    assert ends[: len(lengths) + 1].tolist() == by_definition(repeated, defined, most)
    assert out[: values.size].tolist() == values.tolist()
    for cut in range(len(body)):
        assert list_page(body[:cut], len(repeated), told, most, empty, None, out, ends, 0) == -1


def test_lists_that_do_not_begin_and_levels_above_the_highest_are_damage() -> None:
    out, ends = np.empty(2, np.int32), np.zeros(4, np.int32)

    def page(repeated: list[int], defined: list[int], most: int, empty: int, rows: int = 0) -> int:
        body = hybrid([(repeated, True)], 1) + hybrid([(defined, True)], most.bit_length()) + bytes(8)
        return list_page(body, 2, (2, 1 + most.bit_length()), most, empty, None, out, ends, rows)

    assert page([0, 1], [2, 2], 2, 0) == 1
    assert page([1, 0], [2, 2], 2, 0) == -1  # the first list has no beginning
    assert page([0, 0], [2, 3], 2, 0) == -1
    assert page([0, 0], [2, 1], 2, 0) == -1  # a null element
    assert page([0, 0], [2, 1], 2, 1) == 2
    assert page([0, 1], [2, 1], 2, 1) == -1  # an empty list that goes on
    assert page([1, 1], [2, 2], 2, 0, rows=1) == 1


def test_headers_are_those_of_the_file_and_none_where_they_are_cut_off() -> None:
    rng, out = np.random.default_rng(0), io.BytesIO()
    table = pa.table({"n": pa.array(rng.integers(0, 9, 300), mask=rng.random(300) < 0.3)})
    pq.write_table(table, out, compression="none")
    data = out.getvalue()
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    at, end, seen = (
        chunk.dictionary_page_offset,
        chunk.dictionary_page_offset + chunk.total_compressed_size,
        [],
    )
    for header in page_headers(data[:end], at):
        for cut in range(header[0]):
            assert page_headers(data[at : at + cut], 0) == []
        seen.append((header[1], header[4]))
        at += header[0] + header[3]
    assert at == end
    assert seen == [(2, 9), (0, 300)]
    assert len(page_headers(data[: end - 1], chunk.dictionary_page_offset)) == 2  # the last one goes on


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint64])
def test_dense_integers_of_a_dictionary_that_is_not_compressed_are_read(
    tmp_path: Path, kind: type[Any]
) -> None:
    rng, rows, groups = np.random.default_rng(0), 300, 4
    columns = {f"n{most}": rng.integers(0, most, rows * groups).astype(kind) for most in (3, 90, 250)}
    columns |= {"click": rng.integers(0, 2, rows * groups).astype(kind)}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, compression="none", row_group_size=rows)
    chunk = pq.ParquetFile(path).metadata.row_group(groups - 1).column(0)
    assert chunk.has_dictionary_page
    schema = Schema(label="click", dense=[name for name in columns if name != "click"])
    reader = reader_of(path, rows, schema)
    read = np.concatenate([batch.dense for i in range(reader.leases) for batch in reader.batches(0, i)])
    expected = np.stack([columns[field.name] for field in schema.dense], axis=1)
    np.testing.assert_array_equal(read, expected.astype(np.float32))


@given(st.binary(max_size=60))
def test_any_bytes_are_headers_or_none(data: bytes) -> None:
    sizes = [header[0] + max(header[3], 0) for header in page_headers(data, 0)]
    assert sum(sizes[:-1]) <= len(data)


@given(st.lists(st.binary(max_size=30), max_size=20), st.binary(max_size=20))
def test_strings_follow_each_other_without_their_lengths(texts: list[bytes], behind: bytes) -> None:
    body = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    for page in (body, body + behind):
        found = plain_texts(page, len(texts))
        assert found is not None
        offsets, data = found
        assert [data[start:stop].tobytes() for start, stop in pairwise(offsets)] == texts
    for cut in range(len(body)):
        assert plain_texts(body[:cut], len(texts)) is None


def test_a_string_leaves_room_for_the_lengths_of_those_behind_it() -> None:
    """Else it would be written beyond the room that the strings have together."""
    body = (92).to_bytes(4, "little") + bytes(92)
    assert plain_texts(body, 1) is not None
    assert plain_texts(body, 2) is None
    assert plain_texts(body, 24) is None
    assert plain_texts(body, 25) is None
    with pytest.raises(ValueError, match="values: expected"):
        plain_texts(body, -1)


FLAT: dict[str, tuple[tuple[Any, ...], str]] = {
    "a value too few": ((b"", 3, -1, False, None, OUT, VALID), "out: expected"),
    "values below 0": ((b"", -1, -1, False, None, OUT, VALID), "values: expected"),
    "too many": ((b"", 1 << 25, -1, False, None, OUT, VALID), "values: expected"),
    "two bytes a value": ((b"", 2, -1, False, None, OUT.astype(np.int16), VALID), "4 or 8 bytes"),
    "another dictionary": ((b"", 2, -1, False, VALID, OUT, VALID), "dictionary: expected C-contiguous int64"),
    "a large dictionary": ((b"", 2, -1, False, np.zeros((1 << 24) + 1, np.int64), OUT, VALID), "at most"),
    "levels below nothing": ((b"", 2, -2, True, None, OUT, VALID), "level bytes: expected"),
    "marks of another type": ((b"", 2, -1, True, None, OUT, OUT), "valid: expected"),
}


@pytest.mark.parametrize("case", FLAT)
def test_arguments_that_do_not_fit_are_refused(case: str) -> None:
    arguments, said = FLAT[case]
    with pytest.raises(ValueError, match=said):
        flat_page(*arguments)


@pytest.mark.parametrize(
    ("values", "most", "empty", "ends", "rows", "said"),
    [
        (2, 4, 0, ENDS, 0, "most: expected"),
        (2, 2, 2, ENDS, 0, "empty: expected"),
        (2, 2, 0, ENDS, 2, "rows: expected"),
        (2, 2, 0, ENDS.astype(np.int64), 0, "ends: expected"),
        (2, 2, 0, np.full(4, -1, np.int32), 0, "ends: expected at most"),
        (1, 2, 0, ENDS, 0, "out: expected"),
    ],
)
def test_so_are_those_of_lists(
    values: int, most: int, empty: int, ends: NDArray[Any], rows: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        list_page(b"", values, (-1, -1), most, empty, None, OUT, ends, rows)


@pytest.mark.parametrize("first", [-1, 4])
def test_headers_outside_of_the_bytes_are_refused(first: int) -> None:
    with pytest.raises(ValueError, match="first: expected"):
        page_headers(b"abc", first)


def numbered(step: int, number: int) -> bytes:
    """An i32 of Thrift, so many fields behind the one before; numbers of a byte."""
    return bytes([step << 4 | 5, 2 * number if number >= 0 else -2 * number - 1])


def listed(step: int, kind: int, items: list[bytes]) -> bytes:
    """A list of Thrift."""
    start = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind, len(items)])
    return bytes([step << 4 | 9]) + start + b"".join(items)


def footer_of(groups: list[list[int]]) -> bytes:
    """A footer of row groups whose columns have these codecs, after fields that say nothing of them."""
    rows = []
    for codecs in groups:
        columns = []
        for codec in codecs:
            encodings, path = listed(1, 5, [b"\x00", b"\x06"]), listed(1, 8, [b"\x01n"])
            column = numbered(1, 2) + encodings + path + numbered(1, codec) + numbered(1, 9) + b"\0"
            columns.append(numbered(2, 4) + b"\x1c" + column + b"\0")
        rows.append(listed(1, 12, columns) + numbered(1, 50) + b"\0")
    schema = listed(1, 12, [b"\x48\x01n" + listed(1, 1, [b"\1"] * 20) + b"\0"])
    return numbered(1, 2) + schema + numbered(1, 50) + listed(1, 12, rows) + b"\0"


@pytest.mark.parametrize("columns", [1, 14, 15, 40])
def test_a_footer_may_be_asked_for_codecs_that_the_format_has(columns: int) -> None:
    known = [place % 8 for place in range(columns)]
    assert codecs_known(footer_of([known, known]))
    assert codecs_known(footer_of([]))
    for wrong in (8, 22, -1, -7):
        assert not codecs_known(footer_of([known, [*known[:-1], wrong]]))


def test_one_that_is_cut_off_is_asked_for_nothing() -> None:
    whole = footer_of([[1, 2], [3]])
    assert not any(codecs_known(whole[:size]) for size in range(len(whole)))


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_any_bytes_are_a_footer_or_none(data: bytes, place: int, byte: int) -> None:
    codecs_known(data)
    damaged = bytearray(footer_of([[1, 2], [3, 4]]))
    damaged[place % len(damaged)] = byte
    codecs_known(bytes(damaged))
