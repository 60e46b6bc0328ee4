"""Something about each of many files: in their order, by many threads, and not in silence."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pslib.data.dataset import ParquetData
from pslib.data.parquet_files import FILES_FEW, THREADS, about_each
from pslib.errors import DataError
from pslib.schema import Schema


class Hasty:
    """A clock on which every look takes four seconds."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        self.time_s += 4.0
        return self.time_s

    def sleep_s(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps")


def test_many_files_are_looked_into_at_once_and_told_in_their_order() -> None:
    together = threading.Barrier(THREADS)

    def look(name: str) -> str:
        together.wait(60)  # passed only by as many at a time
        return name.upper()

    names = [f"file {number}" for number in range(2 * THREADS)]
    assert list(about_each(names, look)) == [name.upper() for name in names]


def test_a_user_who_waits_long_hears_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pslib"):
        assert list(about_each([str(i) for i in range(20)], int, Hasty())) == list(range(20))
    assert caplog.messages[0] == "pslib: looked into 2 of 20 files"
    assert len(caplog.messages) == 10


def test_few_files_need_no_threads() -> None:
    names = [str(i) for i in range(FILES_FEW)]
    assert set(about_each(names, lambda _name: threading.current_thread())) == {threading.current_thread()}


def test_problems_of_many_files_come_in_their_order(tmp_path: Path) -> None:
    for number in range(30):
        ids = pa.array([1, 2], pa.int64()) if number != 17 else pa.array(["a", "b"])
        name = "other" if number == 5 else "user"
        pq.write_table(pa.table({"click": [0, 1], name: ids}), tmp_path / f"{number:02}.parquet")
    (tmp_path / "09.parquet").write_text("no Parquet")
    with pytest.raises(DataError) as error:
        ParquetData(tmp_path, Schema(label="click", sparse=["user"]))
    first, second, third = error.value.problems
    assert "05.parquet: no column 'user'" in first
    assert "09.parquet: expected a Parquet file" in second
    assert "17.parquet: column 'user' is string, but integer in" in third
