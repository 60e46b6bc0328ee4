"""What a worker process sets before any library is loaded."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from launch.worker import _trainer
from pslib.cluster import take_place
from pslib.errors import ConfigurationError

STEPS = """
import resource
import numpy as np
from launch import worker
worker.keep_memory()
def step():
    layers = [np.ones((1024, 400), np.float32) for _ in range(8)]
    return sum(layer[0, 0] for layer in layers)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""


def faults_of_a_step() -> int:
    """Page faults of a step that allocates 13 MB, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc",
    reason="it is glibc's allocator that a trainer tells to keep memory, and this machine has another C "
    "library, which is told nothing; that is about time, no result depends on it",
)
def test_a_trainer_keeps_the_memory_of_a_step_for_the_next_one() -> None:
    assert faults_of_a_step() < 20


def test_a_script_that_never_connects_is_told_so_and_one_that_ended_with_an_error_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others, and the coordinator, wait for a trainer at its place."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    script = tmp_path / "script.py"
    about = {"coordinator": "tcp://127.0.0.1:1", "cluster_id": "x", "keys": None, "rank": 0, "generation": 0}
    options = Namespace(**about, job=None, script=[str(script)])
    script.write_text("print('no cluster')")
    with pytest.raises(
        ConfigurationError, match=r"script.py: it has ended without pslib.connect\(\), and all"
    ):
        _trainer(options)
    script.write_text("raise SystemExit(3)")
    assert _trainer(options) == 3
    script.write_text("from pslib.cluster import take_place; take_place()  # as connect does")
    assert _trainer(options) == 0
    take_place()


ASKED = """
import os, signal, sys
from launch import worker
def asked(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return 0
setattr(worker, sys.argv[1], asked)
common = ["--cluster-id", "x", "--coordinator", "tcp://127.0.0.1:1"]
sys.exit(worker.main(["server", *common, "--listen", "tcp://127.0.0.1:0"]))
"""


@pytest.mark.parametrize("moment", ["_tell", "_set_threads", "keep_memory", "_server"])
def test_a_process_that_is_asked_to_leave_while_it_starts_or_ends_says_so_in_a_line(moment: str) -> None:
    command = [sys.executable, "-c", ASKED, moment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (75, "pslib: asked to leave (SIGTERM)\n")
