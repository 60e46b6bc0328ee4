"""The golden checkpoint still loads, and damage to any byte of a checkpoint is noticed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib import checkpoint
from pslib.checkpoint import load_shard, newest, read_manifest
from pslib.checkpoint.verification import verify_checkpoint
from pslib.errors import CheckpointCorruptError, CheckpointError, CheckpointIncompatibleError
from pslib.shard.shard import Shard
from pslib.wire.messages import Setup
from tests.checkpoint.forged import with_checksum
from tests.support.checkpoints import (
    GOLDEN,
    GOLDEN_DENSE,
    GOLDEN_KEYS,
    GOLDEN_TABLE,
    content_of,
    golden_pushes,
    save_tables,
)
from tests.support.clients import client_of
from tests.support.definitions.optimizers import full_step
from tests.support.definitions.table import DictTable


def write_golden(folder: Path) -> None:
    """Write the golden checkpoint: done once, and never again."""
    with client_of(partition_bits=5, dense_blocks=3) as (client, _running):
        client.setup([GOLDEN_TABLE], GOLDEN_DENSE, np.linspace(-1, 1, 5, dtype=np.float32))
        for keys, gradients, dense in golden_pushes():
            client.push({"item": (keys, gradients)}, dense).wait()
        dense = {"length": 5, "optimizer": GOLDEN_DENSE.optimizer.to_dict(), "parameters": []}
        about = {"dense": dense, "about": {"epochs": 3}, "saved_utc": "2026-11-21T09:00:00+00:00"}
        save_tables(client, folder, GOLDEN_TABLE, servers=2, **about)


def test_the_first_checkpoint_ever_still_loads(tmp_path: Path) -> None:
    table, dense = DictTable(GOLDEN_TABLE, 0), np.linspace(-1, 1, 5, dtype=np.float32)
    state = GOLDEN_DENSE.optimizer.initial_state(5)
    for keys, gradients, dense_gradient in golden_pushes():
        table.push(keys, gradients)
        full_step(GOLDEN_DENSE.optimizer, dense, state, dense_gradient)
    expected = {key: np.concatenate([*row.weights, *row.state]).tobytes() for key, row in table.table.items()}
    with client_of(3, partition_bits=7, dense_blocks=2) as (client, _running):
        client.setup([GOLDEN_TABLE], GOLDEN_DENSE, np.zeros(5, np.float32))
        assert client.load(str(GOLDEN)) == len(GOLDEN_KEYS)
        assert client.pull({}, dense=True).wait().dense.tobytes() == dense.tobytes()
    content = content_of(GOLDEN)
    assert content.rows == expected
    assert content.dense == dense.tobytes()
    assert content.dense_state == state.tobytes()


@pytest.mark.parametrize(
    ("version", "digest"),
    [
        ("v1", "d4b95e4fc15e4827"),
        ("v2", "e59e8d2265bf94ae"),
        ("v3", "72afa93f3331df81"),
        ("v4", "9b0834dc2e6cad18"),
    ],
)
def test_checkpoints_of_every_format_are_as_they_were_and_whole(version: str, digest: str) -> None:
    """Their bytes are the definition of their format: a change of them is a new format."""
    folder, found = GOLDEN.parent / f"checkpoint_{version}", hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    assert found.hexdigest()[:16] == digest
    assert verify_checkpoint(newest(str(folder))).problems == ()


# --- damage


def golden_shard() -> Shard:
    shard = Shard(4, 2)
    shard.own(np.arange(18))
    plain = GOLDEN_DENSE.optimizer.to_dict()
    shard.setup(Setup({"tables": [GOLDEN_TABLE.to_dict()]}, 5, plain, np.zeros(5, np.float32)))
    shard.stores["item"].push(GOLDEN_KEYS[:4], np.ones((4, 8), np.float32))
    return shard


@pytest.fixture(scope="module")
def shard() -> Shard:
    return golden_shard()


def refused(shard: Shard, folder: Path) -> CheckpointError:
    """The error of a load that must fail, and change nothing."""
    before = [shard.stores["item"].export_partition(p) for p in range(16)]
    with pytest.raises(CheckpointError) as caught:
        load_shard(shard, str(folder))
    after = [shard.stores["item"].export_partition(p) for p in range(16)]
    for one, other in zip(before, after, strict=True):
        assert [array.tobytes() for array in one] == [array.tobytes() for array in other]
    assert "\n" not in str(caught.value).strip()
    return caught.value


def data_files() -> list[str]:
    return sorted(path.name for path in GOLDEN.glob("*.arrow"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "copy"
    shutil.copytree(GOLDEN, folder)
    return folder


@settings(max_examples=150, deadline=None)
@given(choice=st.data())
def test_any_damage_to_any_file_is_noticed_before_a_row_changes(
    shard: Shard, copy: Path, choice: st.DataObject
) -> None:
    name = choice.draw(st.sampled_from(data_files()))
    whole = (GOLDEN / name).read_bytes()
    place = choice.draw(st.integers(0, len(whole) - 1))
    damage = choice.draw(st.sampled_from(["flip", "cut", "grow", "zeros"]))
    spoilt = bytearray(whole)
    if damage == "flip":
        spoilt[place] ^= 1 << choice.draw(st.integers(0, 7))
    elif damage == "cut":
        del spoilt[place:]
    elif damage == "grow":
        spoilt[place:place] = b"\0"
    else:
        spoilt[place : place + 512] = bytes(len(spoilt[place : place + 512]))
    if bytes(spoilt) == whole:
        return
    try:
        (copy / name).write_bytes(spoilt)
        error = refused(shard, copy)
        report = verify_checkpoint(str(copy))  # format 1 has no checksums of blocks
    finally:
        (copy / name).write_bytes(whole)
    assert isinstance(error, CheckpointCorruptError)
    assert name in str(error)
    assert [name in problem for problem in report.problems] == [True]


def test_a_change_of_any_byte_of_the_manifest_is_noticed(copy: Path) -> None:
    whole = (GOLDEN / "manifest.json").read_bytes()
    numbers = np.random.default_rng(1)
    for place in range(len(whole)):
        flipped = bytes([whole[place] ^ (1 << int(numbers.integers(8)))])
        spoilt_ones = [whole[:place] + flipped + whole[place + 1 :]]
        for spoilt in spoilt_ones if place % 10 else [*spoilt_ones, whole[:place]]:
            (copy / "manifest.json").write_bytes(spoilt)
            with pytest.raises(CheckpointError):
                read_manifest(str(copy))
    (copy / "manifest.json").write_bytes(whole)
    assert read_manifest(str(copy)) == read_manifest(str(GOLDEN))


@pytest.mark.parametrize("name", ["dense", "item"])
def test_a_missing_file_is_named(shard: Shard, tmp_path: Path, name: str) -> None:
    shutil.copytree(GOLDEN, tmp_path / "copy")
    gone = next((tmp_path / "copy").glob(f"{name}.*"))
    gone.unlink()
    error = refused(shard, tmp_path / "copy")
    assert isinstance(error, CheckpointCorruptError)
    assert gone.name in str(error)


def recommitted(folder: Path, **changes: object) -> Path:
    """A copy of the golden checkpoint whose manifest says something else, under a good CRC."""
    shutil.copytree(GOLDEN, folder)
    plain = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_bytes(with_checksum(plain | changes))
    return folder


def test_dense_parameters_that_no_file_holds_are_missed(shard: Shard, tmp_path: Path) -> None:
    files = [entry for entry in json.loads((GOLDEN / "manifest.json").read_text())["files"] if entry["table"]]
    error = refused(shard, recommitted(tmp_path / "copy", files=files))
    assert isinstance(error, CheckpointCorruptError)
    assert "dense parameters missing: 5 of them" in str(error)


def test_a_newer_format_is_named(shard: Shard, tmp_path: Path) -> None:
    error = refused(shard, recommitted(tmp_path / "copy", format_version=5))
    assert isinstance(error, CheckpointIncompatibleError)
    assert "format 5 is newer than this pslib's 4" in str(error)
    with pytest.raises(CheckpointIncompatibleError, match="format 5 is newer than this pslib's 4"):
        verify_checkpoint(str(tmp_path / "copy"))


def test_a_misspelt_checkpoint_is_answered_with_the_folder_beside_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(CheckpointError, match=rf"no such folder; did you mean {tmp_path}/checkpoint\?$"):
        checkpoint.newest(str(tmp_path / "checkpont"))
    with pytest.raises(CheckpointError, match=r"no such folder$"):
        checkpoint.newest(str(tmp_path / "moon"))


def test_names_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file name"):
        checkpoint.ManifestFile("../secret", "item", 1, 1, 1)


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_a_place_without_a_checkpoint_is_named(shard: Shard, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("no folder")
    error = refused(shard, tmp_path / place)
    assert "no manifest.json there" in str(error)
    assert str(tmp_path / place) in str(error)
