"""Files that commands write: what stands in their way is replaced where it is a file, and nothing else is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from pslib.data.atomic_files import atomic_output
from pslib.data.convert.convert import convert_csv
from pslib.errors import ConfigurationError
from tests.support.job_folder import refused, save

CSV = "label,price\n1,0.5\n0,1.5\n"
BAD = CSV + "maybe,1\n"


def in_the_way(path: Path, kind: str) -> Path:
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    return path


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
@pytest.mark.parametrize(("kind", "words"), [("pipe", "a device, pipe or socket"), ("folder", "a folder")])
def test_what_is_no_file_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, words: str, overwrite: list[str]
) -> None:
    (tmp_path / "d.csv").write_text(CSV)
    data = save(tmp_path, "train.parquet")
    out = in_the_way(tmp_path / "out", kind)
    rejects = in_the_way(tmp_path / "x.rejects.tsv", kind)
    in_the_way(tmp_path / "test.parquet", kind)
    before = {one: one.stat() for one in tmp_path.iterdir()}
    for words_of, arguments in (
        ([out], ["convert", "csv", tmp_path / "d.csv", out]),
        ([rejects], ["convert", "csv", tmp_path / "d.csv", tmp_path / "x"]),
        ([out], ["describe", data, "--out", out]),
    ):
        told = [f"{one} is {words}: expected the name of a file" for one in words_of]
        assert refused(capsys, *arguments, *overwrite) == told
    told = refused(capsys, "data", "generate", tmp_path, "--rows", "9", *overwrite)
    assert f"{tmp_path}/test.parquet is {words}: expected the name of a file" in told
    with pytest.raises(ConfigurationError, match=f"out is {words}"), atomic_output(out):
        raise AssertionError("nothing is written")
    assert {one: one.stat().st_ino for one in tmp_path.iterdir()} == {
        one: seen.st_ino for one, seen in before.items()
    }
    assert kind != "pipe" or stat.S_ISFIFO(out.stat().st_mode)


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power may leave an empty file under the name."""
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: order.append(f"fsync {os.fstat(fd).st_size}") or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda one, two: order.append("replace") or replace(one, two))
    with atomic_output(tmp_path / "out") as draft:
        draft.write_text("text")
    assert order == ["fsync 4", "replace"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_written_through(tmp_path: Path, there: bool) -> None:
    """Users put a large file on another disk: it is written there, and the link stays where it was."""
    disk, here = tmp_path / "disk", tmp_path / "here"
    disk.mkdir()
    here.mkdir()
    (tmp_path / "d.csv").write_text(BAD)
    names = ("out.parquet", "out.parquet.rejects.tsv")
    for name in names:
        if there:
            (disk / name).write_text("older")
        (here / name).symlink_to(f"../disk/{name}")
    report = convert_csv(
        tmp_path / "d.csv", here / names[0], dense=["price"], overwrite=there, rejects_max_share=1.0
    )
    assert (report.out, report.rejects) == (here / names[0], here / names[1])
    assert [(here / name).is_symlink() for name in names] == [True, True]
    assert pq.read_table(disk / names[0]).num_rows == 2
    assert "maybe" in (disk / names[1]).read_text()
    assert sorted(one.name for folder in (disk, here) for one in folder.iterdir()) == sorted(2 * names)


def test_a_link_to_an_older_file_is_not_written_through_unasked(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(CSV)
    (tmp_path / "older").write_text("older")
    (tmp_path / "out").symlink_to("older")
    with pytest.raises(ConfigurationError, match="out exists already: remove it, or overwrite it"):
        convert_csv(tmp_path / "d.csv", tmp_path / "out", dense=["price"])
    assert (tmp_path / "older").read_text() == "older"


def test_a_name_is_as_long_as_the_file_system_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path, "train.parquet")
    (tmp_path / "d.csv").write_text(CSV)
    longest = "\u00fc" * 127 + "a"  # 255 bytes
    assert main(["describe", "train.parquet", "--label", "click", "--out", longest]) == 0
    assert (tmp_path / longest).is_file()
    capsys.readouterr()
    long = longest + "b"
    told = f"{long} can't be written: File name too long; give another name"
    assert refused(capsys, "describe", "train.parquet", "--label", "click", "--out", long) == [told]
    rejects = told.replace(long, f"{longest}.rejects.tsv")
    (tmp_path / longest).unlink()
    assert refused(capsys, "convert", "csv", "d.csv", longest) == [rejects]
    assert refused(capsys, "convert", "csv", long, "out") == [f"{long}: no such file"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["d.csv", "train.parquet"]
