"""Versions of a model come, are replaced and go: each checkpoint is read once, its threads end with it."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pslib
from pslib.checkpoint import commit, read_manifest
from pslib.clock import SystemClock
from pslib.errors import CheckpointError
from pslib.scoring import LoadedModel
from pslib.serving.repository import Repository, Version
from pslib.serving.settings import ServeSettings
from tests.support.model_server import served
from tests.support.models.zoo import Trained
from tests.support.waiting import PATIENCE_S, wait_until

RECORD = {"age": 0.5, "user": 3, "movie": "m1", "genres": ["a"], "liked": []}


class Loads:
    """Loads models, and waits at the gate first; `paths` are what it was asked for."""

    def __init__(self) -> None:
        self.paths, self.begun, self.gate = list[str](), threading.Semaphore(0), threading.Event()
        self.gate.set()

    def __call__(self, path: str) -> LoadedModel:
        self.paths.append(os.path.basename(path))
        self.begun.release()
        assert self.gate.wait(PATIENCE_S)
        return pslib.load(path)


@contextmanager
def repository_of(folder: Path, loads: Loads, **settings: Any) -> Iterator[Repository]:
    repository = Repository({"m": str(folder)}, loads, ServeSettings(**settings), SystemClock())
    assert loads.begun.acquire(timeout=PATIENCE_S)
    yield repository
    repository.close()


def place(trained: Trained, folder: Path, number: int) -> Path:
    found = folder / f"checkpoint-{number:06d}"
    shutil.copytree(trained.checkpoint, found)
    return found


def save_anew(checkpoint: Path) -> None:
    """Let a folder be one that was saved later."""
    commit(str(checkpoint), replace(read_manifest(str(checkpoint)), saved_utc="2031-01-01T00:00:00Z"))


def damage(checkpoint: Path) -> None:
    file = next(checkpoint.glob("embedding*"))
    file.write_bytes(file.read_bytes()[:-9])


def has_ended(version: Version) -> bool:
    return not any(thread.is_alive() for thread in version.batcher._threads)


def test_a_folder_that_is_saved_anew_replaces_its_version_and_ends_the_old_one(
    trained: Trained, tmp_path: Path
) -> None:
    checkpoint, loads = place(trained, tmp_path, 1), Loads()
    with repository_of(tmp_path, loads) as repository:
        old = repository.version("m")
        save_anew(checkpoint)
        (line,) = repository.refresh()
        assert "version 1 answers" in line
        new = repository.version("m", "1")
        assert new is not old
        assert list(repository.model("m").kept) == ["1"]
        wait_until(lambda: has_ended(old), PATIENCE_S, "threads of the version before")
        assert repository.refresh() == []


def test_a_folder_that_is_saved_twice_in_a_second_is_taken_twice(trained: Trained, tmp_path: Path) -> None:
    checkpoint = place(trained, tmp_path, 1)
    manifest = read_manifest(str(checkpoint))
    with repository_of(tmp_path, Loads()) as repository:
        commit(str(checkpoint), replace(manifest, about={**manifest.about, "steps": 77}))
        assert read_manifest(str(checkpoint)).saved_utc == manifest.saved_utc
        (line,) = repository.refresh()
        assert "version 1 answers" in line


def test_a_version_that_is_replaced_answers_the_requests_that_hold_it(
    trained: Trained, tmp_path: Path
) -> None:
    checkpoint = place(trained, tmp_path, 1)
    with repository_of(tmp_path, Loads()) as repository:
        with repository.using("m") as old:
            with repository.using("m"):
                save_anew(checkpoint)
                repository.load("m")
            assert not old.batcher._closed
            assert not has_ended(old)
            assert repository.version("m") is not old
        wait_until(lambda: has_ended(old), PATIENCE_S, "threads of the version before")


def test_a_checkpoint_is_loaded_once(trained: Trained, tmp_path: Path) -> None:
    place(trained, tmp_path, 1)
    loads = Loads()
    with repository_of(tmp_path, loads) as repository:
        place(trained, tmp_path, 2)
        loads.gate.clear()
        asked = [threading.Thread(target=repository.load, args=("m",)) for _ in range(2)]
        asked.append(threading.Thread(target=repository.refresh))
        for one in asked:
            one.start()
        assert loads.begun.acquire(timeout=PATIENCE_S)
        loads.gate.set()
        for one in asked:
            one.join(PATIENCE_S)
        repository.refresh()
        repository.roll_back("m")
        assert repository.load("m") == "2"
        assert loads.paths == ["checkpoint-000001", "checkpoint-000002"]


def test_a_rollback_while_a_newer_version_is_loaded_stays(trained: Trained, tmp_path: Path) -> None:
    place(trained, tmp_path, 1)
    loads = Loads()
    with repository_of(tmp_path, loads) as repository:
        place(trained, tmp_path, 2)
        repository.load("m")
        assert loads.begun.acquire(timeout=PATIENCE_S)
        place(trained, tmp_path, 3)
        loads.gate.clear()
        lines: list[str] = []
        refreshing = threading.Thread(target=lambda: lines.extend(repository.refresh()))
        refreshing.start()
        assert loads.begun.acquire(timeout=PATIENCE_S)
        assert repository.roll_back("m") == "1"
        loads.gate.set()
        refreshing.join(PATIENCE_S)
        assert lines == []
        assert repository.version("m").number == "1"
        assert list(repository.model("m").kept) == ["1", "2"]
        assert repository.refresh() == []
        assert repository.load("m") == "3"


def test_a_damaged_checkpoint_is_read_once_until_one_asks_for_it(trained: Trained, tmp_path: Path) -> None:
    place(trained, tmp_path, 1)
    loads = Loads()
    with repository_of(tmp_path, loads) as repository:
        damage(place(trained, tmp_path, 2))
        (line,) = repository.refresh()
        assert "was not taken, the version before answers" in line
        assert repository.refresh() == []
        assert loads.paths == ["checkpoint-000001", "checkpoint-000002"]
        with pytest.raises(CheckpointError, match=r"damaged|truncated|bytes"):
            repository.load("m")
        assert len(loads.paths) == 3
        place(trained, tmp_path, 3)
        assert "version 3 answers" in repository.refresh()[0]


def test_a_load_that_fails_is_told_by_http_with_its_reason(trained: Trained, tmp_path: Path) -> None:
    place(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}) as client:
        damage(place(trained, tmp_path, 2))
        status, answer, _ = client.ask("POST", "/v2/repository/models/m/load")
        assert (status, "checkpoint-000002" in answer["error"]) == (500, True), answer
        assert client.ask("POST", "/predict", RECORD)[1]["version"] == "1"


def test_a_fault_of_the_server_is_json_and_counted(trained: Trained) -> None:
    def broken(_table: Any) -> Any:
        raise RuntimeError("a secret")

    with served({"m": trained.checkpoint}) as client:
        batcher = client.repository.version("m").batcher
        real, batcher._predict = batcher._predict, broken
        status, answer, _ = client.ask("POST", "/predict", RECORD)
        assert (status, answer) == (500, {"error": "internal error; the server's log has it"})
        batcher._predict = real
        assert client.ask("POST", "/predict", RECORD)[0] == 200
        text = client.ask("GET", "/metrics")[1].decode()
        assert 'pslib_serve_requests_total{model="m",status="500",' in text


def test_metrics_of_a_dropped_version_are_told_once_more_and_then_no_more(
    trained: Trained, tmp_path: Path
) -> None:
    place(trained, tmp_path, 1)
    with served({"m": str(tmp_path)}, keep_versions=1) as client:

        def told() -> set[str]:
            text = client.ask("GET", "/metrics")[1].decode()
            return set(re.findall(r'version="(\d+)"', text))

        client.ask("POST", "/predict", RECORD)
        client.ask("POST", "/predict", [])
        assert told() == {"1"}
        place(trained, tmp_path, 2)
        client.repository.load("m")
        client.ask("POST", "/predict", RECORD)
        assert told() == {"1", "2"}
        assert told() == {"2"}
