"""A file of text is converted once for all processes of a machine, and anew when it has changed."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pslib.config import CACHE_VARIABLE
from pslib.data import parquet_files, text_cache
from pslib.data.data_files import data_files
from pslib.data.dataset import open_parquet
from pslib.data.text_cache import bad_records, cache_folder, stored_as, text_bytes
from pslib.errors import DataError

DAY_S = 86_400
OWN = f".pslib-text-{os.geteuid()}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / OWN


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Sources of the conversions of this process."""
    seen: list[Path] = []
    convert = text_cache.convert_by_values

    def counted(run, form, **options):
        seen.append(run.source)
        return convert(run, form, **options)

    monkeypatch.setattr(text_cache, "convert_by_values", counted)
    return seen


def written(path: Path, rows: int = 3) -> str:
    path.write_text("a,b\n" + "".join(f"{i},x\n" for i in range(rows)))
    return str(path)


def test_text_is_converted_once_and_anew_when_it_has_changed(tmp_path: Path, conversions: list[Path]) -> None:
    file = written(tmp_path / "in.csv")
    first = stored_as(file)
    assert stored_as(file) == stored_as(f"file://{file}") == first
    assert pq.read_table(first)["a"].to_pylist() == [0, 1, 2]
    assert len(conversions) == 1
    about = os.stat(written(tmp_path / "in.csv", rows=3))  # the same size, at another time
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert stored_as(file) != first
    assert len(conversions) == 2
    assert text_bytes(file) == os.path.getsize(file)


def test_files_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    about = os.stat(one := written(tmp_path / "in.csv"))
    two = written(tmp_path / "other" / "in.csv")
    os.utime(two, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert stored_as(one) != stored_as(two)


def test_what_is_no_text_is_stored_as_it_is() -> None:
    assert stored_as("s3://bucket/a.parquet") == "s3://bucket/a.parquet"
    assert text_bytes("a.parquet") is None


def test_text_in_an_object_store_is_refused() -> None:
    with pytest.raises(
        DataError, match="expected Parquet in an object store, got text; copy it to a local disk"
    ):
        stored_as("s3://bucket/a.csv.gz?region=x")


def test_threads_convert_a_file_once(tmp_path: Path, conversions: list[Path]) -> None:
    file = written(tmp_path / "in.csv", rows=20_000)
    found: set[str] = set()
    threads = [threading.Thread(target=lambda: found.add(stored_as(file))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len(conversions)) == (1, 1)


def test_a_process_converts_one_file_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert, alone = text_cache.convert_by_values, []

    def seen(run, form, **options):
        alone.append(text_cache._converting.locked())
        return convert(run, form, **options)

    monkeypatch.setattr(text_cache, "convert_by_values", seen)
    stored_as(written(tmp_path / "in.csv"))
    assert alone == [True]


SCRIPT = """
import sys
from pslib.data import text_cache
convert = text_cache.convert_by_values
def told(run, form, **options):
    print("converts", flush=True)
    return convert(run, form, **options)
text_cache.convert_by_values = told
print(text_cache.stored_as(sys.argv[1]))
"""


def test_processes_that_begin_together_convert_a_file_once(tmp_path: Path) -> None:
    file = written(tmp_path / "in.csv", rows=200_000)
    started = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, file], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    lines = [process.communicate(timeout=120)[0].split() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sum("converts" in some for some in lines) == 1
    assert len({some[-1] for some in lines}) == 1


def test_a_process_that_waits_for_the_conversion_of_another_says_so(tmp_path: Path) -> None:
    entry = Path(stored_as(file := written(tmp_path / "in.csv")))
    entry.unlink()
    told = []
    with entry.with_suffix(".lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def released(record: logging.LogRecord) -> bool:
            told.append(record.getMessage())
            fcntl.flock(held, fcntl.LOCK_UN)
            return True

        text_cache.log.addFilter(released)
        try:
            assert stored_as(file) == str(entry)
        finally:
            text_cache.log.removeFilter(released)
    assert told == [f"pslib: {file}: another process converts it; waiting for that one"]


def test_a_failed_conversion_leaves_nothing_and_says_what_to_do(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n1,2\n1\n")
    with pytest.raises(
        DataError,
        match=r"1 bad record .* mend them, or allow more: pslib convert csv --no-label --rejects-max",
    ):
        stored_as(str(tmp_path / "in.csv"))
    assert list(own_cache.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        stored_as(str(tmp_path / "absent.csv"))


def test_bad_records_and_left_out_columns_are_told(
    tmp_path: Path, own_cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns at the conversion, the records by each process: rows after them have other numbers."""
    lines = ['{"a": 1, "o": {}}'] * 2000
    lines[1000] = "bad"
    (tmp_path / "in.jsonl").write_text("\n".join(lines))

    def told() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pslib"):
            stored_as(str(tmp_path / "in.jsonl"))
        return [line for record in caplog.records if "in.jsonl: " in (line := record.getMessage())]

    column, record = told()
    assert column.endswith("column 'o' is left out: expected a value or a list of values, got an object; make columns of what is in it")  # fmt: skip # noqa: E501
    rejects = own_cache / f"{Path(stored_as(str(tmp_path / 'in.jsonl'))).name}.rejects.tsv"
    assert f"1 bad record left out, see {rejects}; the first: line 1001: " in record
    assert rejects.read_text().startswith("1001\t")
    assert told() == []
    monkeypatch.setattr(text_cache, "_told", {str(own_cache)})  # of another process
    assert told() == [record]
    assert bad_records(str(tmp_path / "in.jsonl")) == 1
    assert bad_records(written(tmp_path / "in.csv")) == bad_records("in.parquet") == 0


@pytest.mark.parametrize("change", [lambda file: file.write_text("a,b\n7,y\n"), Path.unlink])
def test_text_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    convert, file = text_cache.convert_by_values, written(tmp_path / "in.csv")

    def changed(run, form, **options):
        report = convert(run, form, **options)
        change(run.source)
        return report

    monkeypatch.setattr(text_cache, "convert_by_values", changed)
    with pytest.raises(DataError, match="it was changed while it was read; start again when it is complete"):
        stored_as(file)
    assert list(own_cache.iterdir()) == []


def test_the_folder_is_that_of_the_variable_of_the_desktop_or_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder() == tmp_path / "cache" / OWN
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "pslib"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "pslib"
    monkeypatch.setenv(CACHE_VARIABLE, "~/named")
    assert cache_folder() == tmp_path / "home" / "named" / OWN


def test_where_no_home_can_be_written_it_is_in_the_folder_for_temporary_files_and_that_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(text_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    assert cache_folder() == tmp_path / f"pslib-{os.geteuid()}"
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700
    assert [record.getMessage() for record in caplog.records] == [
        f"pslib: PSLIB_CACHE: {tmp_path}/file/cache/{OWN} can't be made or written by this user; "
        f"text is kept in {cache_folder()}"
    ]


def test_a_link_in_the_folder_for_temporary_files_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / f"pslib-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv(CACHE_VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(text_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.raises(DataError, match=f"name a folder for converted text: {CACHE_VARIABLE}"):
        cache_folder()


def test_a_user_has_a_folder_of_his_own_in_a_named_one(tmp_path: Path, own_cache: Path) -> None:
    """Users may name one folder: an entry of one, closed to all others, would stop them."""
    assert Path(stored_as(written(tmp_path / "in.csv"))).parent == own_cache
    assert os.listdir(tmp_path / "cache") == [f".pslib-text-{os.geteuid()}"]


def test_a_cache_in_the_folder_of_the_data_changes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet beside text is read instead of it, and what a user has put there is the user's."""
    monkeypatch.setenv(CACHE_VARIABLE, str(data := tmp_path / "data"))
    data.mkdir()
    stored_as(written(data / "a.csv"))
    written(data / "b.csv")
    assert data_files(data).files == (f"{data}/a.csv", f"{data}/b.csv")


@pytest.mark.parametrize("left", [0, 3, 100])
def test_a_broken_entry_is_made_anew(tmp_path: Path, left: int) -> None:
    entry = stored_as(file := written(tmp_path / "in.csv"))
    os.truncate(entry, left)
    assert stored_as(file) == entry
    assert pq.read_table(entry)["a"].to_pylist() == [0, 1, 2]


def test_a_full_disk_is_told_as_one_of_the_cache(tmp_path: Path, own_cache: Path) -> None:
    """A limit of the system on the size of a file stands for the disk."""
    file = written(tmp_path / "in.csv", rows=100_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(DataError) as told, open_parquet(file):
            raise AssertionError("it can't be opened")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert re.fullmatch(
        rf"{own_cache}: can't write the Parquet of {file}: .*File too large; it has [\d,]+ free bytes: "
        "make room, or name another folder: PSLIB_CACHE",
        str(told.value),
    )
    assert list(own_cache.iterdir()) == []


def test_an_entry_that_is_removed_before_it_is_opened_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = []

    def removed_once(file: str) -> str:
        entries.append(stored_as(file))
        if len(entries) == 1:
            os.unlink(entries[0])
        return entries[-1]

    monkeypatch.setattr(parquet_files, "stored_as", removed_once)
    with open_parquet(written(tmp_path / "in.csv")) as opened:
        assert opened.read()["a"].to_pylist() == [0, 1, 2]
    assert len(entries) == 2


def test_nothing_but_entries_and_what_killed_processes_have_left_is_removed(
    tmp_path: Path, own_cache: Path
) -> None:
    entry = Path(stored_as(written(tmp_path / "in.csv")))
    theirs = [tmp_path / "cache" / "mine.parquet", own_cache / "mine.parquet", own_cache / ".notes.tmp"]
    draft = own_cache / f".{entry.name}.0123abcd.tmp"
    left = [draft, own_cache / f"{draft.name}.rejects", entry.with_suffix(".lock")]
    for file in (*theirs, *left):
        file.touch()
        os.utime(file, (0, 0))
    draft_at_work = own_cache / f".{entry.name}.4567abcd.tmp"
    draft_at_work.touch()
    stored_as(written(tmp_path / "two.csv"))
    assert [file.exists() for file in (*theirs, draft_at_work)] == [True] * 4
    assert [file.exists() for file in left] == [False] * 3


def test_the_files_are_for_their_user_alone(tmp_path: Path, own_cache: Path) -> None:
    stored = stored_as(written(tmp_path / "in.csv"))
    assert stat.S_IMODE(os.stat(stored).st_mode) == 0o600
    assert stat.S_IMODE(own_cache.stat().st_mode) == 0o700


def test_entries_leave_when_they_are_old_or_too_large_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {}
    for number, days in enumerate((40, 20, 10, 0)):
        entries[days] = Path(stored_as(written(tmp_path / f"{number}.csv", rows=1000)))
        used_s = entries[days].stat().st_mtime - days * DAY_S
        os.utime(entries[days], (used_s, used_s))
    stored_as(written(tmp_path / "new.csv"))
    assert [days for days, entry in entries.items() if entry.exists()] == [20, 10, 0]
    stored_as(str(tmp_path / "1.csv"))  # it is used, and so the newest but one
    monkeypatch.setattr(text_cache, "KEPT_BYTES", 3 * entries[0].stat().st_size)
    stored_as(written(tmp_path / "newer.csv", rows=1))
    assert [days for days, entry in entries.items() if entry.exists()] == [20, 0]
    monkeypatch.setattr(text_cache, "KEPT_BYTES", 0)
    stored_as(written(tmp_path / "newest.csv", rows=1))
    assert [days for days, entry in entries.items() if entry.exists()] == [20, 0], "used within a day"


def test_the_folder_is_named_once_and_slow_conversions_tell_how_far_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_cache, "REPORT_S", -1)
    with caplog.at_level(logging.WARNING, "pslib"):
        stored_as(written(tmp_path / "in.csv"))
        stored_as(written(tmp_path / "two.csv"))
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "text is converted to Parquet once and kept in" in line]) == 1
    assert f"pslib: {tmp_path}/in.csv: converting, 4 lines of pass 1 of 2" in told
    assert f"pslib: {tmp_path}/two.csv: converting, 4 lines of pass 2 of 2" in told


def test_each_pass_over_json_lines_tells_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_cache, "REPORT_S", -1)
    (tmp_path / "in.jsonl").write_text('{"a": "x"}\n' * 3)
    with caplog.at_level(logging.WARNING, "pslib"):
        stored_as(str(tmp_path / "in.jsonl"))
    told = [line for record in caplog.records if "converting" in (line := record.getMessage())]
    assert told == [
        f"pslib: {tmp_path}/in.jsonl: converting, 3 lines of pass {one} of at most 3" for one in (1, 2, 3)
    ]
