"""``pslib checkpoint``: what is listed, what verification finds, what differs, and what is exported."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.cli.main import main
from pslib import checkpoint
from pslib.checkpoint import arrow_files, sums
from pslib.checkpoint.diff import diff_checkpoints
from pslib.checkpoint.verification import verify_checkpoint
from pslib.client.client import Client
from pslib.errors import CheckpointError
from pslib.shard.shard import Shard
from pslib.storage import open_uri
from pslib.table.initializers import Uniform
from pslib.table.optimizers import SGD, Adagrad, Adam
from pslib.table.policies import ByBloom, ByCount, Compact
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.wire.messages import Setup
from tests.support.checkpoints import save_tables, table_in
from tests.support.clients import client_of, client_with
from tests.support.waiting import PATIENCE_S

SPEC = TableSpec(
    "t", (PartSpec("w", 1, SGD(0.5), Uniform(0.5)), PartSpec("v", 3, Adagrad(0.1), Uniform(0.5)))
)
DENSE = DenseSpec(7, Adam(0.01))
KEYS = np.arange(200, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
BLOCK = 512
"""In place of 8 MiB, so that small files have several blocks."""


def train(client: Client, keys: np.ndarray, seed: int) -> None:
    gradients = np.random.default_rng(seed).standard_normal((keys.size, 4)).astype(np.float32)
    counts = {"t": np.ones(keys.size, np.float32)}
    client.push({"t": (keys, gradients)}, np.full(7, 0.5, np.float32), shows=counts, clicks=counts).wait()


def save(client: Client, folder: Path, spec: TableSpec, servers: int = 1) -> Path:
    dense = {
        "length": 7,
        "optimizer": DENSE.optimizer.to_dict(),
        "parameters": [{"name": "bias", "shape": [1]}, {"name": "kernel", "shape": [2, 3]}],
    }
    about = {"model": "Test", "epochs": 1, "steps": 5}
    return save_tables(client, folder, spec, servers=servers, dense=dense, about=about)


def saved(folder: Path, servers: int = 2, spec: TableSpec = SPEC, more: bool = False) -> Path:
    with client_of(servers, shard_threads=2, partition_bits=4 + servers) as (client, _running):
        client.setup([spec], DENSE, np.arange(7, dtype=np.float32))
        for seed in range(2):
            train(client, KEYS, seed)
        if more:
            train(client, KEYS[:3], 9)
            client.push({"t": (KEYS[-5:] + np.uint64(1), np.ones((5, 4), np.float32))}).wait()
        save(client, folder, spec, servers)
    return folder


@pytest.fixture(scope="module")
def blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (arrow_files, sums):
            patch.setattr(module, "BLOCK_BYTES", BLOCK)
        yield


@pytest.fixture(scope="module")
def one(blocks: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("tools") / "one")


def plain_output(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)


# --- verify


def test_a_whole_checkpoint_is_told_to_be_whole(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(one)]) == 0
    files = len(checkpoint.read_manifest(str(one)).files)
    assert capsys.readouterr().out.startswith(f"{one}: whole; {files} files")
    assert main(["checkpoint", "verify", str(one), "--json"]) == 0
    plain = plain_output(capsys)
    assert (plain["ok"], plain["tables"], plain["problems"]) == (True, {"t": KEYS.size}, [])


@pytest.mark.parametrize("spec", [{"admission": ByCount(2)}, {"admission": ByBloom(2, counters=64)}])
def test_files_of_counted_keys_are_verified_too(tmp_path: Path, spec: dict[str, object]) -> None:
    folder = saved(tmp_path / "c", spec=replace(SPEC, compact=Compact("v", shows=4), **spec))
    entries = checkpoint.read_manifest(str(folder)).files
    report = verify_checkpoint(str(folder))
    assert report.ok
    assert report.files == len(entries)
    assert {entry.kind for entry in entries} > {"rows"}


@pytest.fixture(scope="module")
def copy(one: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(one, tmp_path_factory.mktemp("damaged") / "copy"))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.data())
def test_any_damage_is_found_by_verify_and_by_load_and_its_place_is_told(
    one: Path, copy: Path, choice: st.DataObject
) -> None:
    name = choice.draw(st.sampled_from(sorted(path.name for path in one.iterdir())))
    whole = (one / name).read_bytes()
    place = choice.draw(st.integers(0, len(whole) - 1))
    damage = choice.draw(st.sampled_from(["flip", "cut", "grow"]))
    spoilt = bytearray(whole)
    if damage == "flip":
        spoilt[place] ^= 1 << choice.draw(st.integers(0, 7))
    elif damage == "cut":
        del spoilt[place:]
    else:
        spoilt += b"\0" * (place + 1)
    (copy / name).write_bytes(spoilt)
    try:
        with pytest.raises(CheckpointError):
            load_one(copy)
        if name == "manifest.json":
            with pytest.raises(CheckpointError):
                verify_checkpoint(str(copy))
            return
        problems = verify_checkpoint(str(copy)).problems
    finally:
        (copy / name).write_bytes(whole)
    assert len(problems) == 1
    block, count = place // BLOCK, -(-len(whole) // BLOCK)
    first, last = block * BLOCK, min((block + 1) * BLOCK, len(whole)) - 1
    told = {
        "flip": f"bytes {first}..{last} (block {block + 1} of {count}) are damaged",
        "cut": f"is cut at byte {place}: expected {len(whole)} bytes",
        "grow": f"has {place + 1} bytes too many after byte {len(whole)}",
    }
    assert f"{name}: {told[damage]}" in problems[0]


def load_one(folder: Path) -> None:
    shard = Shard(4, 2)
    shard.own(np.arange(18))
    plain = DENSE.optimizer.to_dict()
    shard.setup(Setup({"tables": [SPEC.to_dict()]}, 7, plain, np.zeros(7, np.float32)))
    checkpoint.load_shard(shard, str(folder))


def test_a_missing_file_and_a_flipped_byte_are_both_told(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(one, tmp_path / "copy"))
    gone, flipped = sorted(folder.glob("t.*"))[:2]
    gone.unlink()
    content = bytearray(flipped.read_bytes())
    content[100] ^= 1
    flipped.write_bytes(content)
    assert main(["checkpoint", "verify", str(folder)]) == 64
    lines = capsys.readouterr().out.splitlines()
    assert f"{gone.name}: is missing" in lines[0]
    assert f"{flipped.name}: bytes 0..{BLOCK - 1} (block 1 of " in lines[1]
    assert len(lines) == 2


def test_rows_that_do_not_add_up_to_the_manifest_are_told(one: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(one, tmp_path / "copy"))
    known = checkpoint.read_manifest(str(folder))
    files = [replace(entry, rows=entry.rows + 1) for entry in known.files]
    checkpoint.commit(str(folder), replace(known, files=files))
    problems = verify_checkpoint(str(folder)).problems
    assert len(problems) == len(files)
    assert "rows; expected" in problems[0]


def test_a_key_that_stands_twice_is_told(one: Path, tmp_path: Path) -> None:
    """No checksum sees what was wrong already when it was written."""
    folder = Path(shutil.copytree(one, tmp_path / "copy"))
    known = checkpoint.read_manifest(str(folder))
    entry = next(one for one in known.files if one.table)
    rows = table_in(folder / entry.name)
    twice = pa.concat_tables([rows, rows]).combine_chunks()
    filesystem, root = open_uri(str(folder))
    found, count = arrow_files.write_file(filesystem, root, entry.name, rows.schema, twice.to_batches())
    again = replace(entry, bytes=found.bytes, crc32=found.crc32, rows=count, blocks=tuple(found.blocks))
    files = [again if one.name == entry.name else one for one in known.files]
    checkpoint.commit(str(folder), replace(known, files=files))
    assert "record batch 0 (from 0) holds a key twice" in verify_checkpoint(str(folder)).problems[0]


# --- ls


def test_ls_tells_complete_from_dead_and_damaged_ones(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/whole", "b/dead", "c/cut"):
        shutil.copytree(one, tmp_path / name)
    (tmp_path / "b/dead/manifest.json").unlink()
    cut = next((tmp_path / "c/cut").glob("t.*"))
    cut.write_bytes(cut.read_bytes()[:9])
    (tmp_path / "notes").mkdir()
    assert main(["checkpoint", "ls", str(tmp_path), "--json"]) == 0
    found = plain_output(capsys)["checkpoints"]
    assert [(Path(each["path"]).name, each["state"]) for each in found] == [
        ("whole", "complete"),
        ("dead", "incomplete"),
        ("cut", "damaged"),
    ]
    assert found[0]["tables"] == {"t": KEYS.size}
    assert (found[0]["model"], found[0]["servers"], found[0]["format_version"]) == ("Test", 2, 3)
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["saved", "(UTC)", "state"]
    assert "Test   t 200" in lines[1]
    assert lines[-1] == f"damaged: {cut.name} has 9 of {(one / cut.name).stat().st_size} bytes"


def test_ls_of_a_folder_without_checkpoints_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no checkpoints in {tmp_path}\n"
    assert main(["checkpoint", "ls", str(tmp_path / "nowhere")]) == 64
    told = capsys.readouterr().err
    assert told == f"pslib: {tmp_path}/nowhere: no such folder; expected one with checkpoints below it\n"


# --- diff


@pytest.fixture(scope="module")
def other(blocks: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved by 3 servers with other partitions, after 3 rows have changed and 5 have come."""
    return saved(tmp_path_factory.mktemp("tools") / "other", servers=3, more=True)


def rows_of(folder: Path) -> dict[int, dict[str, object]]:
    found = {}
    for file in folder.glob("t.*.arrow"):
        found |= {row.pop("key"): row for row in table_in(file).to_pylist()}
    return found


@pytest.mark.parametrize("piece_bytes", [1 << 27, 700])
def test_diff_says_what_a_dict_of_rows_says(
    one: Path, other: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr("pslib.checkpoint.key_ranges.PIECE_BYTES", piece_bytes)
    rows_a, rows_b = rows_of(one), rows_of(other)
    both = rows_a.keys() & rows_b.keys()
    changed = {key for key in both if rows_a[key] != rows_b[key]}
    found = diff_checkpoints(str(one), str(other)).tables["t"]
    assert (found.only_a, found.only_b, found.both) == (0, 5, KEYS.size)
    assert found.changed == len(changed) == 3
    far = np.abs(np.array([rows_a[key]["v"] for key in changed]) - [rows_b[key]["v"] for key in changed])
    assert found.columns["v"].max_difference == far.max()
    assert found.columns["v"].mean_difference == pytest.approx(far.mean())


def test_diff_as_text_and_as_json(one: Path, other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "diff", str(one), str(one)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "table t: 0 rows only in A, 0 only in B, 0 of 200 changed",
        "dense: 0 of 7 changed",
        "equal",
    ]
    assert main(["checkpoint", "diff", str(other), str(one)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "table t: 5 rows only in A, 0 only in B, 3 of 200 changed"
    assert lines[1].startswith("  w: 3 rows changed, |difference| up to ")
    assert lines[-2].startswith("dense: 7 of 7 changed, |difference| up to 0.01")
    assert lines[-1] == "different"
    assert main(["checkpoint", "diff", str(other), str(one), "--json"]) == 0
    plain = plain_output(capsys)
    assert plain["equal"] is False
    assert plain["tables"]["t"]["rows_only_a"] == 5  # type: ignore[index]


def test_diff_of_other_models_says_what_it_can_not_compare(one: Path, tmp_path: Path) -> None:
    parts = (SPEC.parts[0], replace(SPEC.parts[1], dim=2))
    with client_of(1) as (client, _running):
        client.setup([replace(SPEC, parts=parts)], DENSE, np.zeros(7, np.float32))
        client.push({"t": (KEYS, np.ones((KEYS.size, 3), np.float32))}).wait()
        save(client, tmp_path, replace(SPEC, parts=parts))
    found = diff_checkpoints(str(one), str(tmp_path))
    assert found.tables["t"].not_compared == ["part v has dim 3 in A, 2 in B"]
    assert not found.equal


def test_rows_that_have_become_wide_have_changed(tmp_path: Path) -> None:
    spec = replace(SPEC, compact=Compact("v", shows=3))
    with client_of(1) as (client, _running):
        client.setup([spec], DENSE, np.zeros(7, np.float32))
        train(client, KEYS, 0)
        save(client, tmp_path / "narrow", spec)
        for _ in range(3):
            counts = {"t": np.ones(4, np.float32)}
            client.push({"t": (KEYS[:4], np.zeros((4, 4), np.float32))}, shows=counts, clicks=counts).wait()
        save(client, tmp_path / "wide", spec)
    found = diff_checkpoints(str(tmp_path / "narrow"), str(tmp_path / "wide")).tables["t"]
    assert found.changed == found.columns["v"].changed == 4


# --- export


def test_export_writes_what_the_checkpoint_holds(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(one), "--to", "parquet", "--out", str(out), "--state"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "200 rows in 3 files"
    assert {path.name for path in out.iterdir()} == {"t-000.parquet", "t-001.parquet", "dense.parquet"}
    rows = {row.pop("key"): row for path in out.glob("t-*") for row in pq.read_table(path).to_pylist()}
    assert rows == rows_of(one)
    dense = pq.read_table(out / "dense.parquet").to_pylist()
    assert [(row["name"], row["shape"], len(row["values"])) for row in dense] == [
        ("bias", [1], 1),
        ("kernel", [2, 3], 6),
    ]


def test_export_can_write_a_column_a_float_and_leaves_state_out(one: Path, tmp_path: Path) -> None:
    command = ["export", str(one), "--to", "parquet", "--out", str(tmp_path), "--columns", "--json"]
    assert main(command) == 0
    table = pq.read_table(tmp_path / "t-000.parquet")
    assert table.column_names == ["key", "w_0", "v_0", "v_1", "v_2"]
    expected = rows_of(one)
    for row in table.to_pylist():
        assert [row["v_0"], row["v_1"], row["v_2"]] == expected[row["key"]]["v"]


def test_export_overwrites_only_when_it_is_told_to(
    one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(one), "--to", "parquet", "--out", str(tmp_path)]
    assert main(command) == 0
    assert main(command) == 64
    assert "t-000.parquet exists already: remove it, or give --overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0


def test_export_of_a_damaged_checkpoint_leaves_no_half_written_file(one: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(one, tmp_path / "copy"))
    file = sorted(folder.glob("t.*"))[-1]
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)
    assert main(["export", str(folder), "--to", "parquet", "--out", str(tmp_path / "out")]) == 64
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"t-000.parquet"}


# --- a full disk


def test_a_full_disk_ends_the_save_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writing thread's error reaches the saving thread, and no thread is left."""

    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with client_with(SPEC) as client:
        with monkeypatch.context() as patch:
            patch.setattr("pslib.checkpoint.arrow_files.os.writev", full)
            with pytest.raises(CheckpointError, match=r"can't write: .*No space left on device"):
                client.save_files(str(tmp_path), "00000001")
        assert client.save_files(str(tmp_path), "00000002")


def test_a_save_that_fails_at_one_server_is_over_when_the_others_have_done_with_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their trainer removes the files before a slow one begins its own, which stays on a full disk."""
    writev, gate, calls = os.writev, threading.Event(), itertools.count()

    def full_at_first(descriptor: int, views: list[memoryview]) -> int:
        if next(calls) == 0:
            raise OSError(28, "No space left on device")
        assert gate.wait(PATIENCE_S)
        return writev(descriptor, views)

    with client_with(SPEC, servers=2) as client:
        monkeypatch.setattr("pslib.checkpoint.arrow_files.os.writev", full_at_first)
        with ThreadPoolExecutor(1) as pool:
            saving = pool.submit(client.save_files, str(tmp_path), "00000001")
            with pytest.raises(TimeoutError):
                saving.result(0.5)
            gate.set()
            with pytest.raises(CheckpointError, match="No space left on device; 1 of 2 servers have written"):
                saving.result(PATIENCE_S)
