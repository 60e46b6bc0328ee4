"""Servers write an image of one instant while they go on serving."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pslib import checkpoint
from pslib.client.client import Client
from pslib.errors import CheckpointError
from pslib.shard.snapshot import Piece
from pslib.table.optimizers import Adagrad
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from tests.support.checkpoints import table_in
from tests.support.clients import client_of
from tests.support.tables.images import begin_image, end_image, files_of_image
from tests.support.waiting import PATIENCE_S

SPEC = TableSpec("item", (PartSpec("v", 4, Adagrad()),))
KEYS = np.arange(20_000, dtype=np.uint64)


def filled(client: Client) -> np.ndarray:
    """A table with rows; what a pull of all of them says."""
    client.setup([SPEC], DenseSpec(6, Adagrad()), np.ones(6, np.float32))
    client.push({"item": (KEYS, np.ones((KEYS.size, 4), np.float32))}, np.ones(6, np.float32)).wait()
    return client.pull({"item": KEYS}).wait().rows["item"]


def rows_in(
    folder: Path, entries: list[checkpoint.ManifestFile], kind: str = "rows"
) -> dict[int, list[float]]:
    rows: dict[int, list[float]] = {}
    for entry in entries:
        if entry.table and entry.kind == kind:
            columns = table_in(folder / entry.name).to_pydict()
            rows |= dict(zip(columns["key"], columns.get("v", columns["key"]), strict=True))
    return rows


@pytest.mark.parametrize("shard_threads", [1, 2])
def test_an_image_holds_its_instant_while_pushes_go_on(tmp_path: Path, shard_threads: int) -> None:
    with client_of(shard_threads=shard_threads) as (client, _running):
        before = filled(client)
        begin_image(client, tmp_path, "0000abcd")
        for step in range(20):
            some = np.arange(step, 30_000, 20, dtype=np.uint64)
            client.push({"item": (some, np.ones((some.size, 4), np.float32))}, np.ones(6, np.float32)).wait()
        client.erase({"item": KEYS[:50]}).wait()
        entries = files_of_image(client, "0000abcd")
        rows = rows_in(tmp_path, entries)
        assert sorted(rows) == KEYS.tolist()
        assert np.array_equal(np.array([rows[key] for key in KEYS.tolist()], np.float32), before)
        dense = [entry for entry in entries if not entry.table]
        assert sum(entry.rows for entry in dense) == client.joined.map.dense_blocks


def test_increments_hold_what_has_changed_and_follow_what_was_committed(tmp_path: Path) -> None:
    with client_of() as (client, _running):
        filled(client)
        begin_image(client, tmp_path, "00000001", keep=True)
        assert len(rows_in(tmp_path, files_of_image(client, "00000001"))) == KEYS.size
        end_image(client, "00000001")
        client.push({"item": (KEYS[10:13], np.ones((3, 4), np.float32))}).wait()
        client.erase({"item": KEYS[:2]}).wait()
        begin_image(client, tmp_path, "00000002", base="00000001", keep=True)
        entries = files_of_image(client, "00000002")
        assert sorted(rows_in(tmp_path, entries)) == [10, 11, 12]
        assert sorted(rows_in(tmp_path, entries, "gone")) == [0, 1]
        end_image(client, "00000002", committed=False)
        client.push({"item": (KEYS[20:21], np.ones((1, 4), np.float32))}).wait()
        with pytest.raises(CheckpointError, match="no image '00000002' that an increment could follow"):
            begin_image(client, tmp_path, "00000003", base="00000002")
        begin_image(client, tmp_path, "00000003", base="00000001", keep=True)
        entries = files_of_image(client, "00000003")
        assert sorted(rows_in(tmp_path, entries)) == [10, 11, 12, 20]
        assert sorted(rows_in(tmp_path, entries, "gone")) == [0, 1]


def test_asked_for_files_that_were_not_begun_a_server_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_begun, take = threading.Event(), checkpoint.ImageWriter.take

    def take_late(writer: checkpoint.ImageWriter, piece: Piece) -> None:
        another_begun.wait(PATIENCE_S)  # else the first one may be done by then
        take(writer, piece)

    monkeypatch.setattr("pslib.checkpoint.ImageWriter.take", take_late)
    with client_of(1) as (client, _running):
        filled(client)
        with pytest.raises(CheckpointError, match="has begun no image 'cafe0000-000' since it started"):
            files_of_image(client, "cafe0000")
        begin_image(client, tmp_path, "00000001")
        begin_image(client, tmp_path, "00000001")  # a second copy
        begin_image(client, tmp_path, "00000002")
        another_begun.set()
        with pytest.raises(CheckpointError, match="given up: another one was asked for"):
            files_of_image(client, "00000001")
        assert len(rows_in(tmp_path, files_of_image(client, "00000002"))) == KEYS.size


def test_a_server_answers_while_its_disk_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr("pslib.checkpoint.ImageWriter.take", lambda *_: gate.wait(20.0))
    with client_of(1) as (client, _running):
        before = filled(client)
        begin_image(client, tmp_path, "00000001")
        started_s = time.monotonic()
        for _ in range(20):
            assert np.array_equal(client.pull({"item": KEYS[:10]}).wait().rows["item"], before[:10])
        assert time.monotonic() - started_s < 10.0
        gate.set()
        files_of_image(client, "00000001")
