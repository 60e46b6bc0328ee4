"""Folders of data while others write to them, and with names that are no text."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from pslib.data.dataset import ParquetData, files_below
from pslib.data.file_watch import FileWatch, StreamSettings
from pslib.errors import DataError
from pslib.schema import Schema

SCHEMA = Schema(label="label", sparse=["id"])


def test_folders_that_vanish_while_a_stream_is_looked_at_end_nothing(tmp_path: Path) -> None:
    """Spark's ``_temporary`` appears and vanishes with each file that is written."""
    arrivals, over = FileWatch(str(tmp_path), StreamSettings()), threading.Event()
    (tmp_path / "a.parquet").touch()

    def come_and_go() -> None:
        while not over.is_set():
            (tmp_path / "_temporary" / "0" / "task").mkdir(parents=True)
            shutil.rmtree(tmp_path / "_temporary")

    others = threading.Thread(target=come_and_go, daemon=True)
    others.start()
    try:
        for _ in range(10_000):
            assert arrivals.look(()) == (["a.parquet"], False)
    finally:
        over.set()
        others.join()


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    arrivals = FileWatch(str(folder), StreamSettings())
    assert arrivals.look(()) == ([], False)
    folder.rmdir()
    with pytest.raises(DataError, match="can't be read any more; the folder is gone"):
        arrivals.look(())


def test_a_folder_that_never_stands_still_is_an_error_in_the_end() -> None:
    class Restless(pafs.FileSystem):  # type: ignore[misc]
        looks = 0

        def __init__(self) -> None: ...

        def get_file_info(self, _what: object) -> list[pafs.FileInfo]:
            Restless.looks += 1
            raise FileNotFoundError("one of its folders")

    with pytest.raises(FileNotFoundError):
        files_below(Restless(), "in")
    assert Restless.looks > 1


@pytest.mark.parametrize("given", ["", "*", "/*", "/**"])
def test_a_name_that_is_no_text_is_told_in_one_line(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/a\xff.parquet", "w", encoding="ascii"):
        pass
    with pytest.raises(DataError, match=r"name 'a\\udcff.parquet' in it is not UTF-8: rename it") as caught:
        ParquetData(f"{folder}{given}", SCHEMA)
    assert len(caught.value.problems) == 1
    if not given:
        with pytest.raises(DataError, match="is not UTF-8: rename it"):
            FileWatch(str(folder), StreamSettings()).look(())
