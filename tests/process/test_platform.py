"""Replacements of Linux calls: modules import, a model trains, processes meet, without what macOS lacks."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch.job.preflight import hold_port
from pslib.process import platform
from tests.like_macos.lacks import LACKS
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import SLOWLY, assert_counted_once, launch_counting

ROOT = Path(__file__).resolve().parents[2]
LIKE_MACOS = ROOT / "tests" / "like_macos"
PATHS = os.pathsep.join([str(LIKE_MACOS), str(ROOT)])
PACKAGES = ("pslib", "launch", "rec_models")
ONLY_HERE = {("sys", "platform"), ("fcntl", "F_FULLFSYNC"), ("platform", "system")}

EVERYTHING = """
import importlib, pkgutil, sys
count = 0
for name in ("cython_ext", "pslib", "launch", "rec_models"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
print(sys.platform, count)
"""

TRAIN = """
import sys
import numpy as np
import pyarrow as pa
import pslib
from pslib.process.machine import cores, memory_bytes, oom_kills
from rec_models import DeepFM

rng = np.random.default_rng(7)
user, item = rng.integers(0, 300, 4000), rng.integers(0, 80, 4000)
click = ((user * 7 + item * 3) % 5 < 2).astype(np.int8)
table = pa.table({"user": user, "item": item, "price": rng.random(4000, np.float32), "click": click})
schema = pslib.Schema(label="click", sparse=["user", "item"], dense=["price"])
with pslib.connect() as cluster:
    options = dict(batch_rows=256, seed=3, staleness=0, compute_threads=1, progress=False)
    trainer = pslib.Trainer(DeepFM(schema, dim=4, hidden=(16,)), cluster, **options)
    trainer.fit(table, epochs=2)
    trainer.save(sys.argv[1])
model = pslib.load(sys.argv[1])
assert cores() >= 1 and memory_bytes() > 1 << 20 and oom_kills() >= 0
print(np.asarray(model.predict(table.slice(0, 50)), np.float32).tobytes().hex())
"""


def run_like_macos(*words: str | Path, path: str = PATHS) -> str:
    """Output of a process of Python; with the ordinary path it is one of this system."""
    return subprocess.run(
        [sys.executable, *map(str, words)], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, timeout=120, check=True,
    ).stdout  # fmt: skip


def names_used(path: Path) -> set[tuple[str, str]]:
    """Names of modules that a file uses: ``os.fork`` is ``("os", "fork")``."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add((node.value.id, node.attr))
        elif isinstance(node, ast.ImportFrom):
            found |= {(str(node.module), alias.name) for alias in node.names}
    return found


# --- one file -----------------------------------------------------------------------------------------------


def test_one_file_asks_for_the_system_and_calls_what_only_one_has() -> None:
    forbidden = {(module, name) for module, names in LACKS.items() for name in names.split()} | ONLY_HERE
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    users = {path: used for path in files if (used := names_used(path) & forbidden)}
    assert list(users) == [ROOT / "pslib/process/platform.py"]
    headers = [
        path for path in (ROOT / "cython_ext").rglob("*.[hp]*") if path.suffix in (".h", ".pyx", ".pxd")
    ]
    words = ("__linux__", "__APPLE__", "MADV_", "SYS_", "sys/mman.h", "malloc.h")
    asks = [path for path in headers if any(word in path.read_text(encoding="utf-8") for word in words)]
    assert asks == [ROOT / "cython_ext/common/platform.h"]


# --- one process --------------------------------------------------------------------------------------------


def test_every_module_imports_where_python_has_what_macos_has() -> None:
    system, count = run_like_macos("-c", EVERYTHING).split()
    assert system == "darwin"
    assert int(count) > 200


def test_a_model_trained_in_one_process_predicts_the_bits_of_linux(tmp_path: Path) -> None:
    there = run_like_macos("-c", TRAIN, tmp_path / "there")
    assert there == run_like_macos("-c", TRAIN, tmp_path / "here", path=str(ROOT))
    assert len(there) == 2 * 4 * 50 + 1


WAKES = """
import select
from pslib.process import platform
from pslib.transport.router import Waker
waker = Waker()
waiting = select.poll()
waiting.register(waker.fd, select.POLLIN)
for _ in range(50_000):
    waker.wake()
assert waiting.poll(0)
while waiting.poll(0):
    waker.drain()
waker.drain()
waker.wake()
assert waiting.poll(0)
waker.drain()
assert not waiting.poll(0)
waker.close()
waker.close()
waker.wake()
print("woken", platform.LINUX)
"""


@pytest.mark.parametrize(("path", "linux"), [(PATHS, False), (str(ROOT), True)], ids=["macOS", "Linux"])
def test_any_number_of_wakes_blocks_nobody_and_one_more_is_not_lost(path: str, linux: bool) -> None:
    assert run_like_macos("-c", WAKES, path=path) == f"woken {linux}\n"


# --- memory -------------------------------------------------------------------------------------------------


def test_all_memory_of_a_process_counts_where_the_system_hides_its_private_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = psutil.Process()
    known = platform.private_bytes(own)
    assert known == pytest.approx(own.memory_full_info().uss, rel=0.1)

    def refused() -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(own, "memory_full_info", refused)
    assert known < platform.private_bytes(own) == pytest.approx(own.memory_info().rss, rel=0.1)


# --- power loss ---------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of a macOS whose file system answers to a full sync with what a test has put into ``answer``."""
    made: list[str] = []
    monkeypatch.setattr(platform, "LINUX", False)
    monkeypatch.setattr(platform, "_FULL_SYNC", 51)
    monkeypatch.setattr(os, "fsync", lambda descriptor: made.append("fsync"))
    return made


def answer(monkeypatch: pytest.MonkeyPatch, made: list[str], number: int) -> None:
    def full_sync(descriptor: int, command: int) -> int:
        made.append(f"fcntl {command}")
        if number:
            raise OSError(number, os.strerror(number))
        return 0

    monkeypatch.setattr(fcntl, "fcntl", full_sync)


@pytest.mark.parametrize("sync", [platform.sync_file, platform.sync_data])
def test_macos_is_asked_to_empty_the_cache_of_the_disk(
    sync: Callable[[int], None], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, calls, 0)
    sync(3)
    assert calls == ["fcntl 51"]


def test_a_file_system_without_a_full_sync_gets_an_ordinary_one(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, calls, errno.ENOTSUP)
    platform.sync_data(3)
    assert calls == ["fcntl 51", "fsync"]


def test_an_error_of_the_disk_is_never_taken_for_a_missing_command(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, calls, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        platform.sync_file(3)
    assert calls == ["fcntl 51"]


# --- processes ----------------------------------------------------------------------------------------------


def test_a_port_that_can_not_be_held_is_free_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.job.preflight.PORTS_CAN_BE_HELD", False)
    port = hold_port()
    with socket.socket() as alone:  # without SO_REUSEADDR, which would also meet a held port
        alone.bind(("127.0.0.1", port))


@pytest.fixture
def start_like_macos(start: Callable[..., Command], tmp_path: Path) -> Any:
    (seen := tmp_path / "seen").mkdir()
    return partial(start, more={"PYTHONPATH": PATHS, "TEST_LIKE_MACOS": str(seen)})


def test_processes_meet_and_count_every_example_once(
    start_like_macos: Any, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start_like_macos, examples, tmp_path, options=["--durability", "disk"])
    assert command.finish(90) == 0, command.output
    assert_counted_once(tmp_path / "checkpoint", examples)
    assert len(list((tmp_path / "seen").iterdir())) >= 6  # launcher, coordinator, 2 servers, 2 trainers
    assert "Traceback" not in command.output


def test_nothing_is_left_where_the_watchdog_polls_and_the_launcher_is_killed(
    start_like_macos: Any, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start_like_macos, examples, tmp_path, more=["--epochs", "1000", *SLOWLY])
    command.process.kill()
    assert command.finish(10) == -signal.SIGKILL
    assert command.left_over(10) == []
