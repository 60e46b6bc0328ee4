"""Batches of a lease, each held against what plain Python makes of the same rows."""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cython_ext.common.hashing import hash_ints, hash_strings, null_key
from pslib.batch import Batch
from pslib.data import window
from pslib.data.dataset import ParquetData
from pslib.data.order import GroupSlice, Order
from pslib.data.reader import LeaseReader
from pslib.errors import ConfigurationError, DataError
from pslib.schema import DenseField, Schema
from tests.support.data.lease_readers import SCHEMA, bits, reader_of

Row = dict[str, object]


def key_of(value: object, salt: int) -> int:
    if value is None:
        return null_key(salt)
    if isinstance(value, str):
        text = np.frombuffer(value.encode(), np.uint8)
        return int(hash_strings(text, np.array([0, text.size], np.int64), salt)[0])
    return int(hash_ints(np.array([value], np.int64), salt)[0])


def number_of(value: object, field: DenseField) -> float:
    raw = np.float32(field.fill if value is None or math.isnan(float(value)) else value)  # type: ignore[arg-type]
    return float(np.sign(raw) * np.log1p(np.abs(raw))) if field.log1p else float(raw)


def expected_keys(rows: list[Row]) -> list[int]:
    """Sparse fields example by example, then ragged fields one after the other."""
    keys = [key_of(row[field.name], field.salt) for row in rows for field in SCHEMA.sparse]
    for field in SCHEMA.ragged:
        keys += [key_of(v, field.salt) for row in rows for v in row[field.name] or []]  # type: ignore[attr-defined]
    return keys


def check(batch: Batch, rows: list[Row]) -> None:
    keys = expected_keys(rows)
    assert batch.labels.tolist() == [float(row["click"]) for row in rows]  # type: ignore[arg-type]
    dense = [[number_of(row[field.name], field) for field in SCHEMA.dense] for row in rows]
    np.testing.assert_allclose(batch.dense, np.array(dense), rtol=1e-6)
    assert batch.keys.tolist() == list(dict.fromkeys(keys))
    places = [batch.sparse.reshape(-1), *(batch.ragged[field.name].values for field in SCHEMA.ragged)]
    assert batch.keys[np.concatenate(places)].tolist() == keys
    for field in SCHEMA.ragged:
        assert batch.ragged[field.name].lengths.tolist() == [len(row[field.name] or []) for row in rows]  # type: ignore[arg-type]
    assert (batch.labels.dtype, batch.dense.dtype) == (np.float32, np.float32)
    assert (batch.keys.dtype, batch.sparse.dtype) == (np.uint64, np.int32)
    assert batch.sparse.shape == (len(rows), 2)


def all_batches(reader: LeaseReader, order: Order, epoch: int) -> Iterator[Batch]:
    for index in range(order.leases(epoch)):
        yield from reader.batches(epoch, index)


small_ints = st.none() | st.integers(-3, 9)
row_strategy = st.fixed_dictionaries(
    {
        "click": st.integers(0, 1),
        "price": st.none() | st.floats(width=32, allow_infinity=False),
        "count": st.none() | st.integers(-100, 1000),
        "user": st.none() | st.text(max_size=3),
        "item": small_ints,
        "seen": st.none() | st.lists(small_ints, max_size=4),
        "words": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
    }
)
ARROW = pa.schema(
    {
        "words": pa.list_(pa.string()),
        "seen": pa.large_list(pa.int32()),
        "item": pa.int64(),
        "extra": pa.string(),
        "user": pa.string(),
        "count": pa.int16(),
        "price": pa.float32(),
        "click": pa.int8(),
    }
)


def write(rows: list[Row], path: Path, **options: object) -> None:
    pq.write_table(pa.Table.from_pylist(rows, ARROW), path, **options)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(row_strategy, min_size=1, max_size=30),
    group_rows=st.integers(1, 30),
    window_rows=st.integers(1, 30),
    batch_rows=st.integers(1, 9),
    use_dictionary=st.booleans(),
    shuffle=st.booleans(),
)
def test_batches_are_what_plain_python_makes_of_the_rows(
    rows: list[Row], group_rows: int, window_rows: int, batch_rows: int, use_dictionary: bool, shuffle: bool
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        write(rows, folder / "a.parquet", row_group_size=group_rows, use_dictionary=use_dictionary)
        data = ParquetData(folder, SCHEMA)
        order = Order(5, [group.rows for group in data.row_groups], 2 * batch_rows, window_rows, shuffle)
        reader = LeaseReader(data, SCHEMA, order, batch_rows)
        for index in range(order.leases(1)):
            lease = order.lease(1, index)
            pieces = order.windows(1)[lease.window]
            firsts = [data.row_groups[piece.row_group].first_row for piece in pieces]
            in_window = [
                rows[first + row]
                for first, piece in zip(firsts, pieces, strict=True)
                for row in range(piece.start, piece.stop)
            ]
            wanted = [in_window[i] for i in order.window_order(1, lease.window)[lease.start : lease.stop]]
            batches = list(reader.batches(1, index))
            assert len(batches) == reader.batch_count(1, index)
            for number, batch in enumerate(batches):
                check(batch, wanted[number * batch_rows : (number + 1) * batch_rows])
            assert sum(map(len, batches)) == len(wanted)
        reader.close()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 500 rows in row groups of 120."""
    random = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        rows: list[Row] = [
            {
                "click": int(random.integers(2)),
                "price": float(random.normal()),
                "count": i,
                "user": f"u{random.zipf(1.5)}",
                "item": int(random.zipf(1.5)),
                "seen": random.integers(0, 50, random.integers(4)).tolist(),
                "words": [f"w{random.integers(9)}"],
            }
            for i in range(500)
        ]
        write(rows, tmp_path / f"{name}.parquet", row_group_size=120)
    return tmp_path


def test_a_lease_gives_the_same_bits_whatever_was_read_before(folder: Path) -> None:
    options = {"shuffle": True, "window_rows": 100, "lease_rows": 40}
    steady = reader_of(folder, 16, **options)
    leases = steady._order.leases(0)
    expected = [[bits(batch) for batch in steady.batches(0, index)] for index in range(leases)]
    other = reader_of(folder, 16, **options)
    for index in np.random.default_rng(1).permutation(leases).tolist():
        assert [bits(batch) for batch in other.batches(0, index)] == expected[index]
        next(other.batches(1, index % 5))  # another epoch between, left half read


def test_two_leases_can_be_read_in_turns(folder: Path) -> None:
    options = {"shuffle": True, "window_rows": 100, "lease_rows": 40}
    expected = [bits(b) for i in (0, 8) for b in reader_of(folder, 16, **options).batches(0, i)]
    reader = reader_of(folder, 16, **options)
    first, second = reader.batches(0, 0), reader.batches(0, 8)
    turns = [bits(batch) for pair in zip(first, second, strict=True) for batch in pair]
    assert turns[::2] + turns[1::2] == expected


def test_reading_resumes_at_any_batch(folder: Path) -> None:
    reader = reader_of(folder, 16, shuffle=True)
    expected = [bits(batch) for batch in reader.batches(0, 1)]
    assert reader.batch_count(0, 1) == len(expected) == 4
    for first in range(5):
        assert [bits(batch) for batch in reader.batches(0, 1, first)] == expected[first:]


def test_a_batch_stays_as_it_is_while_reading_goes_on(folder: Path) -> None:
    reader = reader_of(folder, 16, window_rows=100, lease_rows=100)
    batch = next(reader.batches(0, 0))
    before = bits(batch)
    for index in range(5):
        list(reader.batches(0, index))
    assert bits(batch) == before


def test_the_next_reader_decodes_into_the_memory_of_one_that_was_closed(folder: Path) -> None:
    """And gives the same; one that is still read has memory of its own."""

    def room(reader: LeaseReader) -> np.ndarray:
        return reader._decoder._room.sparse

    first, second, third = (reader_of(folder, 16) for _ in range(3))
    wanted = [bits(batch) for batch in first.batches(0, 0)]
    memory = room(first)
    first.close()
    first.close()
    assert [bits(batch) for batch in second.batches(0, 0)] == wanted
    assert room(second) is memory
    assert [bits(batch) for batch in third.batches(0, 0)] == wanted
    assert not np.shares_memory(room(third), memory)
    assert not room(first).size


def test_memory_that_a_thread_may_still_write_to_is_left_to_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "_SPARE", [])
    reader = reader_of(folder, 16)
    next(iter(reader.batches(0, 0)))

    def hangs(*_: object) -> None:
        reader.close()  # the reader that waited for the thread has given up
        raise OSError("an answer that came too late")

    monkeypatch.setattr(reader._decoder._scanner, "rows", hangs)
    with pytest.raises(OSError, match="too late"):
        reader._decoder.decode([GroupSlice(0, 0, 10)])
    assert window._SPARE == []


def test_memory_for_fewer_rows_or_other_columns_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Schema(label="y", sparse=["a"])
    others = [
        Schema(label="y", dense=["a"]), Schema(label="y", sparse=["a", "b"]),
        Schema(label="y", sparse=["a"], weight="w"), Schema(label="y", more_labels=["z"], sparse=["a"]),
    ]  # fmt: skip
    for rows, of, taken in [
        (10, wanted, True),
        (11, wanted, False),
        *((5, other, False) for other in others),
    ]:
        room = window._Room.of(10, of)
        monkeypatch.setattr(window, "_SPARE", [(window._widths(of), room)])
        assert (window._room_for(rows, wanted) is room) == taken
        assert window._SPARE == []
    assert window._Room.of(10, wanted).bytes == 10 * (4 + 8)


def test_memory_beyond_a_limit_is_given_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_SPARE", [])
    for limit, kept in ((10, 0), (1 << 20, 1)):
        monkeypatch.setattr(window, "SPARE_BYTES_MAX", limit)
        reader = reader_of(folder, 16)
        next(iter(reader.batches(0, 0)))
        reader.close()
        assert len(window._SPARE) == kept


def test_without_shuffling_examples_come_in_file_order(folder: Path) -> None:
    reader = reader_of(folder, 16, window_rows=100)
    counts = np.concatenate([batch.dense[:, 1] for batch in all_batches(reader, reader._order, 0)])
    np.testing.assert_allclose(counts, np.tile(np.log1p(np.arange(500)), 3), rtol=1e-6)


def test_a_row_group_that_is_cut_into_windows_is_decoded_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    plain: Callable[..., object] = pq.ParquetFile.iter_batches

    def counted(self: pq.ParquetFile, *args: object, **options: object) -> object:
        calls.append(options["row_groups"])
        return plain(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    reader = reader_of(folder, 16, window_rows=30)
    assert sum(map(len, all_batches(reader, reader._order, 0))) == 1500
    assert len(calls) == 3 * 5


def test_types_that_hold_the_same_values_give_the_same_keys(tmp_path: Path) -> None:
    schema = Schema(label="y", sparse=["user", "item"], ragged=["tags"])
    users, items, tags = ["a", None, "b"], [1, 2, None], [["x"], None, ["y", None]]
    kinds = [
        (pa.string(), pa.int32(), pa.list_(pa.string())),
        (pa.large_string(), pa.int64(), pa.large_list(pa.large_string())),
        (
            pa.dictionary(pa.int32(), pa.string()),
            pa.uint8(),
            pa.list_(pa.dictionary(pa.int32(), pa.string())),
        ),
        (pa.binary(), pa.dictionary(pa.int32(), pa.int64()), pa.list_(pa.string())),
        (pa.string_view(), pa.uint64(), pa.list_view(pa.string())),
    ]
    for i, (user, item, tag) in enumerate(kinds):
        raw = [u.encode() if u and user == pa.binary() else u for u in users]
        value = tag.value_type
        flat = pa.array(["x", "y", None])
        flat = flat.dictionary_encode() if pa.types.is_dictionary(value) else flat.cast(value)
        offsets, mask = pa.array([0, 1, 1, 3]), pa.array([False, True, False])
        if pa.types.is_large_list(tag):
            lists = pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), flat, mask=mask)
        elif pa.types.is_list_view(tag):
            lists = pa.array(tags, tag)
        else:
            lists = pa.ListArray.from_arrays(offsets.cast(pa.int32()), flat, mask=mask)
        columns = {
            "y": [True, False, True],
            "user": pa.array(raw, pa.binary() if user == pa.binary() else pa.string()),
        }
        table = pa.table({**columns, "item": pa.array(items, pa.int64()), "tags": lists})
        table = table.set_column(
            1, "user", table["user"].cast(user) if user != pa.binary() else table["user"]
        )
        if not pa.types.is_dictionary(item):
            table = table.set_column(2, "item", table["item"].cast(item))
        else:
            table = table.set_column(2, "item", table["item"].dictionary_encode())
        pq.write_table(table, tmp_path / f"{i}.parquet")
    reader = reader_of(tmp_path, 3, schema, window_rows=3)
    batches = list(all_batches(reader, reader._order, 0))
    assert len(batches) == len(kinds)
    for batch in batches[1:]:
        assert bits(batch)[2:] == bits(batches[0])[2:]
    assert batches[0].keys.size == 3 + 3 + 3


def test_a_file_that_vanishes_or_shrinks_is_a_data_error(folder: Path) -> None:
    reader = reader_of(folder, 16, window_rows=120)
    (folder / "a.parquet").unlink()
    with pytest.raises(DataError, match=r"a\.parquet: row group 0 can't be read any more"):
        next(reader.batches(0, 0))
    write([], folder / "b.parquet")
    lease = next(i for i in range(99) if reader._order.lease(0, i).window == 5)
    with pytest.raises(DataError, match=r"b\.parquet: row group 0 can't be read any more"):
        next(reader.batches(0, lease))


@pytest.mark.parametrize(
    ("columns", "rows", "group_rows", "words"),
    [
        (["click", "user"], 30, 10, "it has 3 row groups now"),
        (["click", "user"], 0, 10, "it has 0 row groups now"),
        (["click", "user"], 120, 12, "expected 10 rows, got 12"),
        (["click", "user"], 80, 8, "expected 10 rows, got 8"),
        (["click"], 100, 10, "it has no column 'user' now"),
        (["user"], 100, 10, "it has no column 'click' now"),
    ],
)
def test_a_file_that_another_has_replaced_is_a_data_error(
    tmp_path: Path, columns: list[str], rows: int, group_rows: int, words: str
) -> None:
    """An export replaced the data during a training; rows beyond the known ones went unread."""
    table = pa.table({"click": np.arange(120) % 2, "user": np.arange(120)})
    for name in ("a", "b"):
        pq.write_table(table.slice(0, 100), tmp_path / f"{name}.parquet", row_group_size=10)
    data = ParquetData(tmp_path, Schema(label="click", sparse=["user"]))
    order = Order(0, [group.rows for group in data.row_groups], 10, window_rows=10, shuffle=False)
    reader = LeaseReader(data, data.schema, order, 10)
    next(reader.batches(0, 9))
    with pq.ParquetWriter(tmp_path / "b.parquet", table.select(columns).schema) as other:
        if rows:  # else there is no row group
            other.write_table(table.select(columns).slice(0, rows), row_group_size=group_rows)
    told = rf"b\.parquet: row group 9 can't be read any more \({words}\); was it changed meanwhile\?"
    with pytest.raises(DataError, match=told):
        next(reader.batches(0, 19))


def test_a_file_that_is_written_anew_while_it_is_read_is_a_data_error(tmp_path: Path) -> None:
    """A file mapped into memory would end the process with SIGBUS instead."""
    path, rows = tmp_path / "a.parquet", 20_000
    table = pa.table(
        {"click": np.arange(rows) % 2, "user": np.random.default_rng(0).integers(0, 1 << 60, rows)}
    )
    pq.write_table(table, path, row_group_size=2000)
    data = ParquetData(path, Schema(label="click", sparse=["user"]))
    order = Order(0, [group.rows for group in data.row_groups], 2000, window_rows=2000, shuffle=False)
    reader = LeaseReader(data, data.schema, order, 500)
    assert len(list(reader.batches(0, 0))) == 4
    pq.write_table(table.slice(0, 10), path)
    with pytest.raises(DataError, match=r"a\.parquet: row group . can't be read any more"):
        list(chain.from_iterable(reader.batches(0, lease) for lease in range(1, 10)))


def place_of(place: str, path: Path) -> tuple[int, int]:
    """First byte of a part of a sound file, and the byte after its last one."""
    opened = pq.ParquetFile(path)
    groups = [opened.metadata.row_group(i) for i in range(opened.metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    chunk = next(one for one in chunks if one.path_in_schema == "item")
    pages, end = chunk.data_page_offset, chunk.dictionary_page_offset + chunk.total_compressed_size
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    statistics = content.index(b"\x05count", footer)
    return {
        "dictionary page": (chunk.dictionary_page_offset, pages),
        "page header": (pages, pages + 20),
        "data page": (pages + 20, end),
        "footer": (footer, len(content)),
        "statistics": (statistics - 14, statistics + 90),  # from the type of their values on
    }[place]


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "lz4", "zstd", "brotli"])
@pytest.mark.parametrize(
    "place", ["dictionary page", "page header", "data page", "footer", "statistics", "all of them"]
)
def test_a_damaged_byte_is_a_data_error_or_does_no_harm(tmp_path: Path, place: str, codec: str) -> None:
    """A damaged value may pass for a sound one in a page without a checksum; a row is never lost."""
    random = np.random.default_rng([len(place), len(codec)])
    path = tmp_path / "a.parquet"
    columns = {"click": random.integers(0, 2, 60), "price": random.normal(size=60), "count": np.arange(60)}
    columns |= {"user": [f"u{i % 7}" for i in range(60)], "item": random.integers(0, 9, 60)}
    lists = {
        "seen": [[1, 2, 3][: i % 4] for i in range(60)],
        "words": [["w", None][: i % 3] for i in range(60)],
    }
    table = pa.table(columns | lists)
    for checksums in (True, False):
        pq.write_table(table, path, row_group_size=30, compression=codec, write_page_checksum=checksums)
        sound, wanted = path.read_bytes(), read_whole(tmp_path)
        start, stop = (0, len(sound)) if place == "all of them" else place_of(place, path)
        every = range(start, stop) if place == "statistics" else random.integers(start, stop, 24).tolist()
        for at, other in product(every, [0, 3] if place == "statistics" else [None]):
            damaged = bytearray(sound)
            values = [0, 255, sound[at] ^ 1, int(random.integers(256))]
            damaged[at] = random.choice(values) if other is None else other
            path.write_bytes(damaged)
            found, problems = read_or_told(tmp_path)
            assert all("a.parquet" in line and len(line.splitlines()) == 1 for line in problems)
            if not problems:
                assert len(found) == len(wanted) == 4
                if place in ("footer", "statistics") or (checksums and place.endswith("data page")):
                    assert found == wanted


def read_or_told(folder: Path) -> tuple[list[list[bytes]], Sequence[str]]:
    """Bits of all batches, or the lines of the error that ended the reading."""
    try:
        return read_whole(folder), ()
    except DataError as error:
        return [], error.problems


def read_whole(folder: Path) -> list[list[bytes]]:
    """Bits of all batches of a folder, 16 rows each but for the last of a row group."""
    reader = reader_of(folder, 16, lease_rows=30, window_rows=30)
    try:
        return [bits(batch) for batch in all_batches(reader, reader._order, 0)]
    finally:
        reader.close()


def test_row_groups_of_other_rows_than_the_footer_says_are_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(77)}), path, row_group_size=40)
    content, before = path.read_bytes(), b"\x16\x9a\x01\x19"  # 77 rows, then the list of row groups
    assert content.count(before) == 1
    path.write_bytes(content.replace(before, b"\x16\x9c\x01\x19"))
    with pytest.raises(
        DataError, match=r"a\.parquet: .*; its footer says 78 rows, and its row groups 77; write"
    ):
        ParquetData(path, Schema(label=None, sparse=["n"]))


@pytest.mark.parametrize("codec", [8, 22, 60])
def test_a_codec_that_the_format_has_not_is_a_data_error(codec: int, tmp_path: Path) -> None:
    """Asked for its name, pyarrow would end the process."""
    path = tmp_path / "a.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"n": np.arange(9)}), path, **options)
    before = b"\x18\x01n\x15"  # the path of the column, then the field of its codec
    content = path.read_bytes()
    assert content.count(before + b"\0") == 1
    path.write_bytes(content.replace(before + b"\0", before + bytes([2 * codec])))
    reader = reader_of(tmp_path, 9, Schema(label=None, sparse=["n"]))
    with pytest.raises(DataError, match=r"a\.parquet: row group 0 can't be read any more, column 'n'"):
        list(reader.batches(0, 0))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint64])
def test_dense_integers_of_a_dictionary_that_is_not_compressed_are_read(
    tmp_path: Path, kind: type[np.generic]
) -> None:
    rng, rows, groups = np.random.default_rng(0), 300, 4
    columns = {f"n{most}": rng.integers(0, most, rows * groups).astype(kind) for most in (3, 90, 250)}
    columns |= {"click": rng.integers(0, 2, rows * groups).astype(kind)}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, compression="none", row_group_size=rows)
    assert pq.ParquetFile(path).metadata.row_group(groups - 1).column(0).has_dictionary_page
    schema = Schema(label="click", dense=[name for name in columns if name != "click"])
    reader = reader_of(path, rows, schema)
    found = np.concatenate([batch.dense for i in range(reader.leases) for batch in reader.batches(0, i)])
    expected = np.stack([columns[field.name] for field in schema.dense], axis=1)
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_a_reader_that_does_not_fit_its_data_is_refused(folder: Path) -> None:
    data = ParquetData(folder, SCHEMA)
    with pytest.raises(ConfigurationError) as caught:
        LeaseReader(data, Schema(label="click", sparse=["user"]), Order(0, [1], 1), 0)
    assert len(caught.value.problems) == 3


def test_a_lease_or_batch_that_is_not_there_is_refused_at_once(folder: Path) -> None:
    reader = reader_of(folder, 16)
    with pytest.raises(IndexError, match="lease must be in"):
        reader.batches(0, 999)
    with pytest.raises(IndexError, match=r"first_batch must be in 0\.\.4 for lease 0, got 5"):
        reader.batches(0, 0, 5)
