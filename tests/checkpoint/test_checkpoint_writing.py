"""Files of a checkpoint while they are written: their checksums, and a disk that fails."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from pslib.checkpoint import arrow_files, sums
from pslib.checkpoint.arrow_files import write_file
from tests.support.waiting import WAIT_S, wait_until

SCHEMA = pa.schema([("key", pa.uint64())])
BLOCK = 64


def batches(count: int, rows: int = 64) -> Any:
    """Record batches of some hundred bytes each."""
    for number in range(count):
        yield pa.record_batch([pa.array(range(number, number + rows), pa.uint64())], schema=SCHEMA)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "PIECE_BYTES", 256)
    monkeypatch.setattr(arrow_files, "SYNC_BYTES", 1024)


def write_keys(folder: Path, count: int) -> tuple[Any, int]:
    return write_file(fs.LocalFileSystem(), str(folder), "keys.arrow", SCHEMA, batches(count))


def in_use() -> set[Any]:
    """Threads, and descriptors with what they stand for; those of an earlier test may end at any moment."""
    held: set[Any] = {*threading.enumerate()}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            held.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return held


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_crc_of_two_pieces_is_that_of_both_in_one(first: bytes, second: bytes) -> None:
    assert sums.joined_crc(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@given(st.lists(st.binary(max_size=3 * BLOCK), max_size=8))
def test_sums_are_those_of_all_bytes_and_of_each_block_however_they_come(pieces: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "BLOCK_BYTES", BLOCK)
        found = sums.Sums()
        for piece in pieces:
            found.add(piece)
        whole = b"".join(pieces)
        assert (found.bytes, found.crc32) == (len(whole), zlib.crc32(whole))
        assert found.blocks == [zlib.crc32(whole[at : at + BLOCK]) for at in range(0, len(whole), BLOCK)]


def test_a_file_that_is_synced_while_it_grows_is_whole(tmp_path: Path) -> None:
    found, rows = write_keys(tmp_path, 100)
    data = (tmp_path / "keys.arrow").read_bytes()
    assert (rows, found.bytes, found.crc32) == (6400, len(data), zlib.crc32(data))
    assert pa.ipc.open_file(data).read_all().equals(pa.Table.from_batches(batches(100)))


def test_a_disk_that_fails_while_a_file_grows_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "fdatasync", failing)  # and the sync at the end knows nothing of it
    with pytest.raises(OSError, match="the disk is gone"):
        write_keys(tmp_path, 100)


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_write_that_fails_leaves_no_thread_and_no_open_file(
    pieces: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose disk is full tries again with every checkpoint."""
    written, write = 0, os.writev

    def full(descriptor: int, views: list[memoryview]) -> int:
        nonlocal written
        written += 1
        if written > pieces:
            raise OSError(errno.ENOSPC, "no space")
        return write(descriptor, views)

    monkeypatch.setattr(os, "writev", full)
    before = in_use()
    for count in (100, 200):
        written = 0
        with pytest.raises(OSError, match="no space"):
            write_keys(tmp_path, count)
    assert in_use() <= before


def test_a_writer_that_ends_a_file_with_a_known_error_keeps_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _views: list[memoryview]) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "writev", full)
    before = in_use()
    writer = arrow_files._Writer(arrow_files._LocalTarget(str(tmp_path / "a.arrow")))
    writer.write(bytes(300))
    wait_until(lambda: writer._error, WAIT_S, "the writing thread to meet the error")
    with pytest.raises(OSError, match="no space"):
        writer.finish()
    assert in_use() <= before
