"""Loads of checkpoints and the log: replayed until images stand for them, refused where there is no room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib.checkpoint import Manifest, ManifestFile, commit
from pslib.errors import LogError, MemoryLimitError
from pslib.server.shard_thread import _Loads, load_into
from pslib.shard.shard import Shard
from pslib.table.optimizers import Adagrad
from pslib.table.policies import ByCount
from pslib.table.tables import DenseSpec
from pslib.update_log import RollingLog
from pslib.update_log.shard_log import ShardLog, recover
from pslib.wire.messages import Load, Setup
from tests.checkpoint import test_increments
from tests.checkpoint.test_checkpoint_policies import save
from tests.support.checkpoints import GOLDEN, GOLDEN_DENSE, GOLDEN_TABLE
from tests.support.clients import client_of, client_with
from tests.support.simulated.files import SimulatedDisk
from tests.update_log.test_replay import ABOUT, TABLES, Run, fingerprint


def test_a_load_is_replayed_until_images_make_it_unneeded() -> None:
    disk = SimulatedDisk()

    def shard_with_tables() -> Shard:
        return Shard(5, 3)

    shard = shard_with_tables()
    log = ShardLog(RollingLog(disk.files("log"), ABOUT), shard, 1 << 40)
    shard.own(np.arange(32 + 3))
    shard.setup(Run.setup(GOLDEN_TABLE, GOLDEN_DENSE))
    message = Load(str(GOLDEN), "1")
    load_into(shard, message)
    log.loaded(message)

    def state_of(one: Shard) -> dict[int, Any]:
        return {
            partition: sorted(
                (key, weights.tobytes(), state.tobytes())
                for key, weights, state in zip(*one.stores["item"].export_partition(partition), strict=True)
            )
            for partition in range(32)
        }

    for loads in (1, 0):
        calls: list[Load] = []
        twin = shard_with_tables()
        recover(
            RollingLog(disk.files("log"), ABOUT),
            twin,
            lambda one, what, calls=calls: (calls.append(what), load_into(one, what)),
        )
        assert len(calls) == loads
        assert state_of(twin) == state_of(shard)
        assert twin.dense is not None
        assert shard.dense is not None
        assert {b: w.tobytes() for b, w in twin.dense.weights.items()} == {
            b: w.tobytes() for b, w in shard.dense.weights.items()
        }
        while log.owes:
            log.pace()


@pytest.mark.parametrize("admission", [None, ByCount(2)], ids=["any", "counted"])
@pytest.mark.parametrize("number", [0, 1], ids=["full", "increment"])
def test_rows_that_leave_during_a_load_are_gone_after_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, admission: ByCount | None
) -> None:
    spec = replace(test_increments.SPEC, admission=admission)
    monkeypatch.setattr(test_increments, "SPEC", spec)
    keys = np.arange(200_000, dtype=np.uint64)
    with client_of(1, partition_bits=5, dense_blocks=3) as (client, _running):
        client.setup([spec], test_increments.DENSE, np.ones(6, np.float32))
        rows = np.ones((keys.size, 4), np.float32)
        for _ in range(2):  # the second one makes rows of keys that are counted
            client.push({"item": (keys, rows)}).wait()
        test_increments.save(client, tmp_path, 0)
        client.push({"item": (keys[:60_000], rows[:60_000])}).wait()  # some had left and come again
        client.erase({"item": keys[::50]}).wait()
        client.push({"item": (keys[::50], rows[: keys[::50].size])}).wait()
        test_increments.save(client, tmp_path, 1)
    run = Run(replace(spec, when_full="oldest"), 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    path = tmp_path / f"checkpoint-{number + 1:06d}"
    _Loads(run.log)(run.shard, Load(str(path), "1", tables="item"))
    assert 0 < run.shard.stores["item"].rows < keys.size
    twin = Run.blank(8 << 20)
    recover(run.open(), twin, load_into)
    found, expected = fingerprint(twin), fingerprint(run.shard)
    assert [name for name in expected if found.get(name) != expected[name]] == []


def test_a_restart_after_a_load_that_let_rows_go_has_room_for_new_ones(saved_rows: dict[int, str]) -> None:
    run = Run(replace(TABLES["Adagrad"], when_full="oldest"), 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    _Loads(run.log)(run.shard, Load(saved_rows[400_000], "1", tables="t"))
    twin = Run.blank(8 << 20)
    recover(run.open(), twin, load_into)
    assert twin.stores["t"].rows == run.shard.stores["t"].rows
    assert twin.stores["t"].stats()["resident_bytes"] <= 8 << 20
    twin.room.make({"t": np.arange(1 << 40, (1 << 40) + 500, dtype=np.uint64)}, twin.stores, twin.tables)


@pytest.fixture(scope="module")
def saved_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Checkpoints by their number of rows."""
    folders = {}
    for rows in (400_000, 140_000, 100_000):
        folders[rows] = str(tmp_path_factory.mktemp("rows"))
        keys = np.arange(rows, dtype=np.uint64)
        with client_with(TABLES["Adagrad"], partition_bits=5) as client:
            client.push({"t": (keys, np.ones((rows, 3), np.float32))}).wait()
            save(client, Path(folders[rows]), TABLES["Adagrad"])
    return folders


@pytest.mark.parametrize("pushes", [0, 20], ids=["empty", "trained"])
@pytest.mark.parametrize("rows", [400_000, 140_000], ids=["too many", "a few too many"])
def test_a_load_without_room_leaves_what_a_restart_gives(
    saved_rows: dict[int, str], rows: int, pushes: int
) -> None:
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    for _ in range(pushes):
        run.push()
    run.log.write_images()
    before, message = fingerprint(run.shard), Load(saved_rows[rows], "1", tables="t")
    half_way = rows == 140_000 and pushes > 0
    outcome = (
        "answers no more" if half_way else "none of its rows has" if rows == 400_000 else "tables are empty"
    )
    with pytest.raises(MemoryLimitError, match=outcome):
        _Loads(run.log)(run.shard, message)
    assert bool(run.shard.broken) == half_way
    assert (fingerprint(run.shard) != before) == half_way
    while run.log.owes:
        run.log.pace()
    run.log.flush()
    assert fingerprint(run.recovered()) == before


def test_a_load_that_has_just_room_is_done_and_survives_a_restart(saved_rows: dict[int, str]) -> None:
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    for _ in range(20):
        run.push()
    assert _Loads(run.log)(run.shard, Load(saved_rows[100_000], "1", tables="t")) == {"rows": 100_000}
    while run.log.owes:
        run.log.pace()
    run.check()


def test_a_copy_of_a_load_that_was_refused_is_refused_though_there_is_room_now(
    saved_rows: dict[int, str],
) -> None:
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40, memory_bytes=8 << 20)
    work, message = _Loads(run.log), Load(saved_rows[140_000], "1", tables="t")
    with pytest.raises(MemoryLimitError):
        work(run.shard, message)
    run.shard.room.limit_bytes = 64 << 20
    with pytest.raises(MemoryLimitError):
        work(run.shard, message)
    assert work(run.shard, replace(message, stem="2")) == {"rows": 140_000}


def test_a_load_counts_what_other_tables_take(saved_rows: dict[int, str]) -> None:
    """The load would fit without the other tables; with them it is far from fitting."""
    run = Run(TABLES["Adagrad"], 3, log_bytes=1 << 40, memory_bytes=9 << 20)
    other = replace(TABLES["Adagrad"], name="other")
    run.shard.setup(Setup({"tables": [other.to_dict()]}, 0, {}, np.empty(0, np.float32)))
    keys = np.arange(80_000, dtype=np.uint64)
    run.shard.stores["other"].push(keys, np.ones((keys.size, 3), np.float32))
    run.shard.room.forget()
    with pytest.raises(MemoryLimitError, match=r"where other tables have .* none of its rows has changed"):
        _Loads(run.log)(run.shard, Load(saved_rows[140_000], "1", tables="t"))
    assert run.shard.stores["other"].rows == keys.size


def test_a_load_that_fails_when_dense_parameters_have_begun_to_change_leaves_no_shard_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows could be taken back, which were none; dense blocks could not."""
    spec = DenseSpec(6, Adagrad())
    with client_of(1, partition_bits=5, dense_blocks=3) as (client, _running):
        client.setup([TABLES["Adagrad"]], spec, np.ones(6, np.float32))
        files = [ManifestFile(**entry) for entry in client.save_files(str(tmp_path), "00000001")]
        dense = {"length": 6, "optimizer": spec.optimizer.to_dict(), "parameters": []}
        commit(str(tmp_path), Manifest([TABLES["Adagrad"].to_dict()], dense, files, 1))

    def fails(*_: Any) -> None:
        raise LogError("no more")

    monkeypatch.setattr("pslib.checkpoint.files.put_dense", fails)
    shard = Shard(5, 3)
    shard.own(np.arange(35))
    shard.setup(Run.setup(TABLES["Adagrad"], spec))
    with pytest.raises(LogError, match="it answers no more: start again"):
        load_into(shard, Load(str(tmp_path), "1"))
    assert "ended half-way" in shard.broken
