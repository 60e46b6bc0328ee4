"""Files of folders and patterns that are read: names, links, tables, and folders that others write to."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from pslib.data import data_files as listing
from pslib.data.data_files import data_files, files_below
from pslib.data.dataset import ParquetData
from pslib.data.file_watch import FileWatch, StreamSettings
from pslib.data.inspect.check import check
from pslib.data.inspect.describe import describe
from pslib.errors import ConfigurationError, DataError
from pslib.schema import Schema

SCHEMA = Schema(label="label", sparse=["id"])
TABLE = pa.table({"label": [0, 1, 1], "id": [1, 2, 3]})


def made(folder: Path, *names: str) -> Path:
    """A folder with Parquet files of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(TABLE, folder / name)
    return folder


READ = ("_day=2/b.parquet", "a.parquet", "day=1/c.PARQ", "day=1/deep/part-0000.gz.parquet", "e=_x/_f=/f.pq")
LEFT_OUT = (
    "000000_0",
    ".a.parquet.crc",
    ".hidden.parquet",
    "_SUCCESS",
    "_metadata",
    "day=1/g.parquet.snappy",
)
HIDDEN = ("._day=3/h.parquet", "_temporary/0/i.parquet", "day=1/.tmp/j.parquet", "_j=1.parquet")


@pytest.mark.parametrize("given", ["", "file://"])
def test_one_rule_says_what_is_read_for_training_a_check_and_a_stream_and_what_is_left_out_is_told(
    tmp_path: Path, given: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_told", set())
    folder = f"{given}{made(tmp_path, *READ, *LEFT_OUT, *HIDDEN)}"
    found = data_files(folder)
    assert [name.removeprefix(f"{folder}/") for name in found.files] == sorted(READ)
    assert (len(found.left_out), found.problems) == (len(LEFT_OUT) + len(HIDDEN), ())
    for _ in range(2):
        assert ParquetData(folder, SCHEMA).rows == 3 * len(READ)
    assert [record.getMessage() for record in caplog.records] == [f"pslib: {found.note()}"]
    assert found.note() in check(folder).notes
    assert found.note() in check(folder, SCHEMA).notes
    assert "10 files or folders left out by name: " in str(found.note())
    caplog.clear()
    watch = FileWatch(folder, StreamSettings(window_files=99))
    assert [watch.look(()) for _ in range(3)] == [(sorted(READ), False)] * 3
    (told,) = caplog.records
    assert "10 files or folders left out by name: 000000_0, _j=1.parquet, day=1/g" in told.getMessage()


def test_a_stream_tells_at_once_what_it_does_not_count_when_no_more_will_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, "000000_0")
    watch = FileWatch(str(tmp_path), StreamSettings(marker="_SUCCESS"))
    for name in ("_SUCCESS", "_STOP"):
        assert watch.look(()) == ([], False)
        (tmp_path / name).touch()
    assert watch.look(()) == ([], True)
    assert [record.getMessage().count("1 file or folder") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("_delta_log/00000000000000000000.json", "DeltaTable(PATH).file_uris()"),
        (".hoodie/hoodie.properties", "get_file_slices()"),
        ("metadata/00001-a.metadata.json", "plan_files()"),
        ("metadata/00001-a.gz.metadata.json", "plan_files()"),
        ("snapshot/snapshot-12", "plan().splits()"),
        ("_spark_metadata/0", "inputFiles()"),
    ],
)
@pytest.mark.parametrize(
    "given", ["", "db", "db/t", "db/t/day=1", "db/t/data/_x=2", "db/t/*", "**", "db/t/*/*.parquet"]
)
def test_a_folder_whose_log_says_which_files_are_live_is_refused_from_above_and_from_inside(
    tmp_path: Path, log: str, told: str, given: str
) -> None:
    made(tmp_path, "db/t/day=1/a.parquet", "db/t/data/_x=2/b.parquet", f"db/t/{log}")
    asked = f"{tmp_path}/{given}"
    calls: list[Callable[[], object]] = [lambda: ParquetData(asked, SCHEMA), lambda: describe(asked)]
    calls += [] if "*" in given else [lambda: FileWatch(asked, StreamSettings())]
    for call in calls:
        with pytest.raises(DataError, match="db/t: expected a folder of data, got") as caught:
            call()
        (problem,) = caught.value.problems
        assert told in problem
    assert check(asked).problems == check(asked, SCHEMA).problems == (problem,)
    live = f"{tmp_path}/db/t/day=1/a.parquet"
    assert ParquetData([live], SCHEMA).rows == 3


def test_a_table_is_no_text_to_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path, "t/a.parquet", "t/_delta_log/0.json") / "t"
    assert (
        main(["convert", "csv", str(folder), str(tmp_path / "out"), "--label", "x"])
        == ConfigurationError.exit_code
    )
    assert "file_uris()" in capsys.readouterr().err


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "day" / "z.parquet")


def test_a_pipe_that_is_given_is_told_as_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.parquet")
    assert data_files(tmp_path / "p.parquet").problems == (
        f"{tmp_path}/p.parquet: expected a file or a folder, got a pipe, socket or device",
    )


def _link(name: str, to: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).symlink_to(to)


def _loops(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / "day" / name).symlink_to("..")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_link("latest", "day"), ["latest: given twice, also as {}/day;"]),
        (_link("b.parquet", "day/a.parquet"), ["day/a.parquet: given twice, also as {}/b.parquet;"]),
        (
            lambda folder: os.link(folder / "day/a.parquet", folder / "b.parquet"),
            ["day/a.parquet: given twice"],
        ),
        (_loops, ["day/one: given twice, also as {};", "day/two: given twice, also as {};"]),
        (_link("b.parquet", "b.parquet"), ["b.parquet: can't be read; Too many levels of symbolic links"]),
        (_link("b.parquet", "gone"), ["b.parquet: a link to gone, which is not there"]),
        (_pipe, ["day/z.parquet: expected a file, got a pipe"]),
        (_link(".latest", "day"), []),
    ],
)
def test_each_file_is_read_once_and_what_has_the_name_of_data_is_data_or_a_problem(
    tmp_path: Path, change: Callable[[Path], None], told: list[str]
) -> None:
    change(made(tmp_path, "day/a.parquet"))
    for asked in (f"{tmp_path}", f"{tmp_path}/**"):
        found = data_files(asked)
        assert len(found.problems) == len(told)
        for problem, words in zip(found.problems, told, strict=True):
            assert problem.startswith(f"{tmp_path}/{words.format(tmp_path)}")
        assert sum(file.rows for file in check(asked).files) == (
            3 if asked == str(tmp_path) or not told else 0
        )
    if told:
        with pytest.raises(DataError):
            FileWatch(str(tmp_path), StreamSettings()).look(())


def test_data_behind_a_link_that_is_not_hidden_is_read(tmp_path: Path) -> None:
    """A mounted volume has hidden folders, and links to them that are the data."""
    made(tmp_path, "..2026/a.parquet", ".store/b.parquet")
    for name, to in (("..data", "..2026"), ("a.parquet", "..data/a.parquet"), ("latest", ".store")):
        (tmp_path / name).symlink_to(to)
    assert data_files(str(tmp_path)).files == (f"{tmp_path}/a.parquet", f"{tmp_path}/latest/b.parquet")


def test_a_folder_with_other_names_alone_tells_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got none but 000000_0, 000001_0, 000002_0 and 1 other$"):
        ParquetData(made(tmp_path, *(f"00000{i}_0" for i in range(4))), SCHEMA)


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
