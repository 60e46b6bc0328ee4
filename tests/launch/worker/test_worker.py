"""Settings that a worker process makes before any library is loaded."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from launch.worker.log_lines import read_lines
from launch.worker.main import _run_reporting, _trainer, set_threads
from pslib.cluster import take_rank
from pslib.errors import (
    ConfigurationError,
    LogFullError,
    LogStillFullError,
    MemoryLimitError,
    PslibError,
    ServerLostError,
)
from pslib.process.blas import TRAINERS_HERE, kernels_for

STEPS = """
import resource
import numpy as np
from launch.worker import main as worker
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
    script.write_text("from pslib.cluster import take_rank; take_rank()  # as connect does")
    assert _trainer(options) == 0
    take_rank()


ASKED = """
import os, signal, sys
from launch.worker import main as worker
def asked(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return 0
setattr(worker, sys.argv[1], asked)
common = ["--cluster-id", "x", "--coordinator", "tcp://127.0.0.1:1"]
sys.exit(worker.main(["server", *common, "--listen", "tcp://127.0.0.1:0"]))
"""


@pytest.mark.parametrize("moment", ["_tell", "set_threads", "keep_memory", "_server"])
def test_a_process_that_is_asked_to_leave_while_it_starts_or_ends_says_so_in_a_line(moment: str) -> None:
    command = [sys.executable, "-c", ASKED, moment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (entry,) = read_lines(done.stderr.removesuffix("\n"))
    assert (done.returncode, entry.level) == (75, "warning")
    assert entry.printed == ["pslib: asked to leave (SIGTERM)"]


@pytest.mark.parametrize(
    ("error", "final"),
    [(LogStillFullError, True), (MemoryLimitError, True), (LogFullError, False), (ServerLostError, False)],
)
def test_who_would_meet_the_same_error_again_says_so_to_the_launcher(
    error: type[PslibError], final: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def role() -> int:
        raise error("no room")

    assert _run_reporting(role) == 69
    said = capsys.readouterr()
    (entry,) = read_lines(said.err.removesuffix("\n"))
    assert (entry.level, entry.printed) == ("error", ["pslib: no room"])
    assert said.out == ("pslib-final \n" if final else "")


def set_by(
    role: str, monkeypatch: pytest.MonkeyPatch, cores: int, sharing: str = "", kernels: str = "", **own: str
) -> dict[str, str]:
    """Return the environment variables that a process of a role adds to those that are there."""
    environment = own | ({TRAINERS_HERE: sharing} if sharing else {})
    before = dict(environment)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr("launch.worker.main.cores", lambda: cores)
    monkeypatch.setattr("launch.worker.main.kernels_for", lambda: kernels_for(kernels))
    set_threads(role)
    assert {name: environment[name] for name in before} == before
    return {name: value for name, value in environment.items() if name not in before}


@pytest.mark.parametrize(
    ("role", "cores", "sharing", "threads"),
    [
        ("trainer", 8, "", "7"),
        ("trainer", 8, "2", "3"),
        ("trainer", 8, "20", "1"),
        ("trainer", 1, "", "1"),
        ("server", 8, "", "1"),
        ("coordinator", 8, "2", "1"),
    ],
)
def test_trainers_share_all_cores_but_one_and_other_processes_multiply_with_one_thread(
    role: str, cores: int, sharing: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
             "NUMEXPR_NUM_THREADS")  # fmt: skip
    assert set_by(role, monkeypatch, cores, sharing) == dict.fromkeys(names, threads)


ZEN_5 = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512dq avx512bw avx512vl\n"


def test_a_trainer_on_an_amd_processor_with_avx512_gets_its_kernels_and_no_other_process_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set_by("trainer", monkeypatch, 8, kernels=ZEN_5)["OPENBLAS_CORETYPE"] == "SkylakeX"
    for role, cpu in (
        ("server", ZEN_5),
        ("coordinator", ZEN_5),
        ("trainer", ZEN_5.replace("avx512vl", "")),
        ("trainer", ZEN_5.replace("AuthenticAMD", "GenuineIntel")),
    ):
        assert "OPENBLAS_CORETYPE" not in set_by(role, monkeypatch, 8, kernels=cpu)


def test_what_a_user_has_set_for_threads_and_kernels_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"OPENBLAS_CORETYPE": "Zen", "OMP_NUM_THREADS": "5"}
    found = set_by("trainer", monkeypatch, 8, kernels=ZEN_5, **own)
    assert found["OPENBLAS_NUM_THREADS"] == "7"
    assert not own.keys() & found.keys()


EARLY = """
import os, sys
from launch.worker import main as worker
def role(options):
    print(options.role, os.environ["OPENBLAS_NUM_THREADS"], "numpy" in sys.modules)
    return 0
worker._server = role
common = ["--cluster-id", "x", "--coordinator", "tcp://127.0.0.1:1"]
sys.exit(worker.main(["server", *common, "--listen", "tcp://127.0.0.1:0"]))
"""


def test_threads_are_set_before_numpy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "server 1 False"
