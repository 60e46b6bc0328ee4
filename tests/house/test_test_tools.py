"""The test helpers end soon, and say why, where something that they need is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine.kernel_age import older_kernels
from tests.support.processes.counting_runs import Start, train_in_step
from tests.support.queues import starts_processes
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = re.compile(r"^from cython_ext\.([\w.]+) import", re.MULTILINE)


def test_a_run_that_ends_before_its_first_step_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)ended with 64 before steps.*absent\.parquet"):
        train_in_step(start, tmp_path / "absent.parquet", tmp_path)


def test_kernels_that_are_older_than_their_sources_are_named(tmp_path: Path) -> None:
    for name, written_s in {
        "old.pyx": 20, "old.cpython-311-x86_64-linux-gnu.so": 10,
        "new.pyx": 20, "new.cpython-311-x86_64-linux-gnu.so": 30,
        "never_built.pyx": 20,
    }.items():  # fmt: skip
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (written_s, written_s))
    assert older_kernels(tmp_path) == ["old"]


def test_tests_that_start_processes_are_known_by_what_they_or_their_helpers_say() -> None:
    here = ROOT / "tests"
    for name in (
        "cluster/test_processes",
        "cluster/test_kills",
        "launch/worker/test_preemption",
        "launch/places/test_local_launch",
        "house/test_wheel",
    ):
        assert starts_processes(here / f"{name}.py"), name
    for name in (
        "simulation/test_simulation",
        "table/test_store_model",
        "wire/test_applied_pushes",
        "wire/test_codec",
    ):
        assert not starts_processes(here / f"{name}.py"), name


def test_all_tests_of_a_queue_run_in_one_worker() -> None:
    """Regression: pytest 9.2 with xdist 3.8, and marks added after xdist had looked, failed in silence."""
    files = ["tests/values/test_hashing.py", "tests/wire/test_applied_pushes.py"]
    workers = ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    words = f"-m pytest {' '.join(workers)} -v -p no:cacheprovider -o addopts="
    command = [sys.executable, *words.split(), *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert " ".join(workers) in (ROOT / "Makefile").read_text()
    ran = re.findall(r"^\[(gw\d)\].* PASSED (tests/[\w/]+\.py)::", done.stdout, re.MULTILINE)
    assert sorted({file for _, file in ran}) == files
    assert len(ran) > 10
    assert len(set(ran)) == len(files), "a file's tests ran in both workers"


def test_a_wait_in_vain_says_what_for() -> None:
    asked: list[int] = []
    with pytest.raises(AssertionError, match=r"^waited 0\.03 s for the moon, after [1-9]\d* looks$"):
        wait_until(
            lambda: asked.append(1), 0.03 / PATIENCE, lambda: f"the moon, after {len(asked)} looks", 0.001
        )
    with pytest.raises(AssertionError, match=r"^waited 0 s for the sun$"):
        wait_until(lambda: False, 0.0, "the sun")
    wait_until(lambda: True, 0.0, "nothing")


# --- what `make asan` runs ---------------------------------------------------------------------------------


def kernels() -> list[str]:
    found = (ROOT / "cython_ext").rglob("*.pyx")
    return [".".join(path.relative_to(ROOT / "cython_ext").with_suffix("").parts) for path in found]


def kernel_tests() -> dict[Path, str]:
    """Text of each test file that `make asan` runs."""
    command = ["make", "-s", "-f", "-", "print"]
    rule = "include Makefile\nprint:\n\t@echo $(KERNEL_TESTS)\n"
    said = subprocess.run(command, cwd=ROOT, input=rule, capture_output=True, text=True, check=True).stdout
    found: dict[Path, str] = {}
    for name in said.split():
        path = ROOT / name
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        found |= {file: file.read_text(encoding="utf-8") for file in files}
    return found


def test_every_kernel_has_a_test_that_runs_under_the_address_sanitizer() -> None:
    """Imported by a test, or by a module of which it is a test, or a part of such a kernel."""
    found: set[str] = set()
    for text in kernel_tests().values():
        found |= {*IMPORTED.findall(text)}
        for module in re.findall(r"^from ((?:pslib|rec_models)\.[\w.]+) import", text, re.MULTILINE):
            path = ROOT / f"{module.replace('.', '/')}.py"
            found |= {*IMPORTED.findall(path.read_text(encoding="utf-8"))} if path.exists() else set()
    to_look_at = list(found)
    while to_look_at:
        path = ROOT / "cython_ext" / f"{to_look_at.pop().replace('.', '/')}.pyx"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        parts = {*re.findall(r"^from cython_ext\.([\w.]+) cimport", text, re.MULTILINE)} - found
        found |= parts
        to_look_at += parts
    assert sorted({*kernels()} - found) == []


def test_every_test_that_calls_a_kernel_runs_under_the_address_sanitizer() -> None:
    """Hashes alone are what tests of anything ask for."""
    listed = kernel_tests().keys()
    calling = {
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if {*IMPORTED.findall(path.read_text(encoding="utf-8"))} - {"common.hashing"}
    }
    assert sorted(calling - listed) == []
