"""Forged checkpoints, whose checksums are right, are refused in a line by all that read them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from launch.cli.main import main
from pslib.checkpoint import commit, load_shard, read_manifest
from pslib.checkpoint.diff import diff_checkpoints
from pslib.checkpoint.verification import verify_checkpoint
from pslib.errors import CheckpointCorruptError, CheckpointError
from tests.checkpoint.forged import changed_bytes, copy_of, rewritten, shard_for, with_checksum
from tests.update_log.forged import fault_of, golden_bodies

ROOT = Path(__file__).resolve().parents[2]


def tried(*words: str | int | Path) -> None:
    """Try mutants in a process of its own: what an unchecked offset does is not an exception."""
    command = [sys.executable, "-m", *map(str, words)]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-300:]}"


def test_mutants_of_checkpoints_are_refused_by_load_as_by_verify(tmp_path: Path) -> None:
    tried("tests.checkpoint.forged", tmp_path, 0, 400)


def test_mutants_of_log_records_and_images_are_refused_in_a_line() -> None:
    tried("tests.update_log.forged", 0, 300)


@pytest.mark.parametrize("seed", [6725, 16548])
def test_a_log_of_a_table_whose_settings_have_several_faults_is_refused_in_a_line(seed: int) -> None:
    assert fault_of(golden_bodies(), seed) is None


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_thousand_mutants_are_refused_by_load_as_by_verify(tmp_path: Path) -> None:
    tried("tests.checkpoint.forged", tmp_path, 1000, 20_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_thousand_mutants_of_log_records_are_refused_in_a_line() -> None:
    tried("tests.update_log.forged", 1000, 20_000)


# --- what a forged file may not cost


def test_a_forged_row_file_takes_no_rows_from_a_shard_that_has_some(tmp_path: Path) -> None:
    path, shard = copy_of("checkpoint_v4", tmp_path / "copy"), shard_for("checkpoint_v4")
    load_shard(shard, str(path))
    rows = {name: store.rows for name, store in shard.stores.items()}
    rewritten(path, lambda b: b.take([0] * b.num_rows) if "key" in b.schema.names else b)
    with pytest.raises(CheckpointCorruptError, match="holds a key twice"):
        load_shard(shard, str(path))
    assert (rows, shard.broken) == ({name: store.rows for name, store in shard.stores.items()}, "")
    with pytest.raises(CheckpointCorruptError, match="holds a key twice"):
        diff_checkpoints(str(path), str(path))


def test_what_no_load_would_take_is_not_committed(tmp_path: Path) -> None:
    path = copy_of("checkpoint_v4", tmp_path / "copy")
    manifest, before = read_manifest(str(path)), (path / "manifest.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"not committed.*servers"):
        commit(str(path), replace(manifest, servers=-1))
    assert (path / "manifest.json").read_bytes() == before


# --- single entries of the manifest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tables": None}, "tables: Input should be a valid array"),
        ({"tables": ["x"]}, "tables.0"),
        ({"increment": "x"}, "increment"),
        ({"increment": {"depth": 1}}, "increment.of: Field required"),
        ({"increment": {"of": "../elsewhere", "token": "0" * 8, "depth": 1}}, "increment.of"),
        ({"increment": {"of": "..", "token": "0" * 8, "depth": 1}}, "increment.of"),
        ({"dense": {}}, "dense.length: Field required"),
        ({"dense": {"length": 1 << 40}}, "dense parameters missing: 1099511627776 of them"),
        ({"about": {"epochs": []}}, "about.epochs"),
        ({"about": {"files": 1}}, "about.files"),
        ({"about": {"key_kinds": {"id": 5}}}, "about.key_kinds.id"),
        ({"cut": {"token": "00000001", "table": {"jobs": 3}}}, "cut.table"),
        ({"servers": -1}, "servers"),
    ],
)
def test_an_entry_of_another_type_is_named_by_verify_ls_and_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    path = copy_of("checkpoint_v1", tmp_path / "copy")
    file = path / "manifest.json"
    file.write_bytes(with_checksum(json.loads(file.read_text()) | change))
    assert main(["checkpoint", "verify", str(path)]) == 64
    assert said in capsys.readouterr().err
    assert main(["checkpoint", "ls", str(path)]) in (0, 64)
    assert said in "".join(capsys.readouterr())
    with pytest.raises(CheckpointCorruptError) as caught:
        load_shard(shard_for("checkpoint_v1"), str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../dense.arrow"},
        {"name": ".."},
        {"table": "nobody"},
        {"kind": "gone", "table": ""},
        {"rows": True},
        {"bytes": -1},
        {"table": None},
    ],
)
def test_a_file_that_no_table_can_have_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = copy_of("checkpoint_v1", tmp_path / "copy")
    plain = json.loads((path / "manifest.json").read_text())
    plain["files"][0] |= change
    (path / "manifest.json").write_bytes(with_checksum(plain))
    with pytest.raises(CheckpointCorruptError, match=r"file|table"):
        load_shard(shard_for("checkpoint_v1"), str(path))


def test_a_row_file_that_is_called_dense_where_nothing_is_dense_is_refused(tmp_path: Path) -> None:
    """Its rows were left out of a load, silently."""
    path = copy_of("checkpoint_v2", tmp_path / "copy")
    plain = json.loads((path / "manifest.json").read_text())
    plain["files"][0]["table"] = ""
    (path / "manifest.json").write_bytes(with_checksum(plain))
    with pytest.raises(CheckpointCorruptError, match="a file of dense parameters, of which there are none"):
        load_shard(shard_for("checkpoint_v2"), str(path))
    assert main(["checkpoint", "verify", str(path)]) == 64


# --- single arrays of the files


def _dense(change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: change(batch) if "first" in batch.schema.names else batch


def _with(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    columns = [column if index == place else one for index, one in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _write_offsets(data: bytearray, changed: list[int]) -> None:
    """Replace the last offsets of a dense file's list of weights in place: Arrow writes sound ones only."""
    with pa.ipc.open_file(bytes(data)) as reader:
        weights = reader.get_batch(0).column("weights")
    offsets = np.frombuffer(weights.buffers()[1], np.int32, len(weights) + 1)
    place = data.find(offsets.tobytes())
    forged = np.r_[offsets, np.int32(0)][: len(offsets)].copy()
    forged[-len(changed) :] = changed[-len(forged) :]
    data[place : place + forged.nbytes] = forged.tobytes()


@pytest.mark.parametrize("offsets", [[-64], [1 << 30], [1 << 20, 1], [-64, -63], [-(1 << 31)]])
def test_offsets_of_a_list_that_point_elsewhere_are_refused_before_they_are_followed(
    tmp_path: Path, offsets: list[int]
) -> None:
    path = copy_of("checkpoint_v1", tmp_path / "copy")
    changed_bytes(path, "dense*", lambda data: _write_offsets(data, offsets))
    _refused_alike(path, r"can't be decoded|dense parameters")


@pytest.mark.parametrize("first", [-1, 4, 1 << 40, -(1 << 62)])
def test_a_dense_piece_beyond_the_vector_is_refused(tmp_path: Path, first: int) -> None:
    path = copy_of("checkpoint_v1", tmp_path / "copy")
    rewritten(
        path,
        _dense(lambda batch: _with(batch, "first", pa.array([first] * batch.num_rows, pa.int64()))),
    )
    _refused_alike(path, "dense parameters")


def test_a_dense_piece_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = copy_of("checkpoint_v1", tmp_path / "copy")
    rewritten(path, _dense(lambda batch: _with(batch, "first", pa.array([0] * batch.num_rows, pa.int64()))))
    _refused_alike(path, "missing or there twice")


def test_a_key_that_is_there_twice_and_a_null_among_weights_are_refused(tmp_path: Path) -> None:
    twice = copy_of("checkpoint_v1", tmp_path / "twice")
    rewritten(twice, lambda b: b if "first" in b.schema.names else b.take([0] * b.num_rows))
    _refused_alike(twice, "holds a key twice")

    def with_null(batch: pa.RecordBatch) -> pa.RecordBatch:
        if "a" not in batch.schema.names:
            return batch
        kind = batch.schema.field("a").type
        width = batch.num_rows * kind.list_size
        values = pa.array([None, *([0.0] * (width - 1))], kind.value_type)
        return _with(batch, "a", pa.FixedSizeListArray.from_arrays(values, type=kind))

    null = copy_of("checkpoint_v1", tmp_path / "null")
    rewritten(null, with_null)
    _refused_alike(null, "has a null in column 'a'")


def _refused_alike(path: Path, said: str) -> None:
    """``verify`` and ``load`` refuse a checkpoint in the same words."""
    problems = verify_checkpoint(str(path)).problems
    with pytest.raises(CheckpointError, match=said) as caught:
        load_shard(shard_for("checkpoint_v1"), str(path))
    assert str(caught.value).split("; its tables")[0] in problems
