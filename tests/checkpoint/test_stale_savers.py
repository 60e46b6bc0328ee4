"""Two saves into one folder, of which one stood still: a complete checkpoint is there afterwards."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from pslib.checkpoint import manifest
from pslib.checkpoint.manifest import Manifest, commit, read_manifest
from pslib.errors import CheckpointError
from tests.support.checkpoints import GOLDEN, content_of

HeirSaves = Callable[[], None]


def renamed(folder: Path, known: Manifest, token: str) -> Manifest:
    """The same content in files of its own, whose manifest is not written yet."""
    files = [replace(one, name=re.sub(r"\.\w{8}-", f".{token}-", one.name)) for one in known.files]
    for old, new in zip(known.files, files, strict=True):
        shutil.copy(folder / old.name, folder / new.name)
    return replace(known, files=files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "folder"))


@pytest.fixture
def stale(folder: Path) -> Manifest:
    return renamed(folder, read_manifest(str(folder)), "0000aaaa")


@pytest.fixture
def heir_saves(folder: Path, stale: Manifest) -> HeirSaves:
    successors = renamed(folder, stale, "0000bbbb")
    return lambda: commit(str(folder), replace(successors, saved_utc="later"))


def stand_still(monkeypatch: pytest.MonkeyPatch, where: str, heir_saves: HeirSaves, before: bool) -> None:
    """Let the successor save when the first committer comes to one of its steps, or is behind it."""
    real: Callable[..., None] = getattr(manifest, where)

    def step(*details: Any) -> None:
        monkeypatch.setattr(manifest, where, real)
        if before:
            heir_saves()
        real(*details)
        if not before:
            heir_saves()

    monkeypatch.setattr(manifest, where, step)


def check_heirs(folder: Path) -> None:
    assert read_manifest(str(folder)).saved_utc == "later"
    assert content_of(folder) == content_of(GOLDEN)
    assert sum("manifest" in one.name for one in folder.iterdir()) <= 2  # and what was never moved


@pytest.mark.parametrize(
    ("where", "before"), [("_write", True), ("_write", False), ("sync", False), ("_check_there", False)]
)
def test_a_saver_that_stood_still_before_the_move_leaves_the_checkpoint_of_its_heir(
    folder: Path,
    stale: Manifest,
    heir_saves: HeirSaves,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    before: bool,
) -> None:
    stand_still(monkeypatch, where, heir_saves, before)
    with pytest.raises(CheckpointError, match=r"expected .* another save .* replaced it meanwhile") as caught:
        commit(str(folder), stale)
    assert "\n" not in str(caught.value)
    check_heirs(folder)


def test_a_saver_that_stood_still_while_it_wrote_does_not_write_into_its_heirs_manifest(
    folder: Path, stale: Manifest, heir_saves: HeirSaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(filesystem: fs.FileSystem, file: str, data: bytes) -> None:
        monkeypatch.undo()
        with filesystem.open_output_stream(file) as stream:
            heir_saves()
            stream.write(data)

    monkeypatch.setattr(manifest, "_write", slowly)
    with pytest.raises(CheckpointError):
        commit(str(folder), stale)
    check_heirs(folder)


def test_a_saver_that_stood_still_behind_the_move_removes_no_file_of_its_heir(
    folder: Path, stale: Manifest, heir_saves: HeirSaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch, "_remove", heir_saves, before=True)
    with pytest.raises(CheckpointError, match=r"expected manifest\.json .* another save"):
        commit(str(folder), stale)
    check_heirs(folder)


def test_manifests_that_were_never_moved_go_with_the_next_save(folder: Path, heir_saves: HeirSaves) -> None:
    for name in ("manifest.json.new", "manifest.json.0123abcd.new", "manifest.incomplete.json.0123abcd.new"):
        (folder / f".{name}").touch()
    (folder / ".manifest.json.mine.new").touch()
    heir_saves()
    names = {one.name for one in folder.iterdir() if "manifest" in one.name}
    assert names == {"manifest.json", ".manifest.json.mine.new"}
