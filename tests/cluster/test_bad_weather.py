"""Bad weather, with real processes: each ends in time, in one clear line, as docs/design/failures.md says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.cli.main import main
from launch.places.local import LocalLauncher
from launch.supervisor.run_spec import Command as Process
from launch.supervisor.run_spec import Outcome, Plan, Task
from launch.supervisor.supervisor import run_cluster
from pslib.client.client import Client
from pslib.clock import SystemClock
from pslib.config import ClusterConfig, Timing
from pslib.errors import WaitTimeoutError
from pslib.table.tables import PartSpec, TableSpec
from pslib.transport import ZmqTransport
from tests.support.clusters import cluster_of
from tests.support.processes.counting_runs import (
    SCRIPT,
    Start,
    assert_counted_once,
    launch_counting,
    write_counting_examples,
)
from tests.support.processes.slow_network import DetouredTransport, SlowProxy
from tests.support.waiting import PATIENCE, WAIT_S, wait_until

SILENCE_S = Timing().silence_s
SHIFT_S = 100 * 86400
CLOCKS = Path(__file__).parents[1] / "shifted_clocks"
STARTS = re.compile(r"waiting \d+ s for (\d of 2 (servers|trainers)|server \d at \S+ to take its .*)$")
"""Log line of the others about a process that takes 5 s longer to start."""


def run_here(
    launcher: Any, config: ClusterConfig, folder: Path, examples: Path, *more: str, log: str | None = None
) -> tuple[Outcome, list[str]]:
    """Run the counting script with a launcher of this process; its outcome and what was said."""
    (folder / "logs").mkdir()
    arguments = (str(SCRIPT), str(examples), str(folder / "checkpoint"), *more)
    said: list[str] = []
    plan = Plan(config, "test", arguments, folder / "logs", log=log)
    return run_cluster(launcher, plan, say=said.append), said


# --- a full disk -------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(
            "a real file system of 256 KiB can't be mounted without root; that a full disk refuses a push "
            "and changes nothing is shown everywhere by a simulated one (tests/server/test_server_logs.py)"
        )
    yield place
    subprocess.run(["umount", "-l", place], check=False)


@pytest.mark.root
def test_a_disk_that_is_full_refuses_the_checkpoint_in_one_line_and_leaves_the_last_one_whole(
    start: Start, examples: Path, tmp_path: Path, small_disk: Path
) -> None:
    small = write_counting_examples(tmp_path / "small.parquet", 500)
    arguments = [
        "launch",
        "--servers",
        "2",
        "--trainers",
        "2",
        "--overwrite",
        "--out",
        tmp_path / "out",
        SCRIPT,
    ]
    first = start(*arguments, small, small_disk / "checkpoint")
    assert first.finish(40) == 0, first.output
    second = start(*arguments, examples, small_disk / "checkpoint")
    assert second.finish(60) == 69, second.output
    (line,) = second.lines("No space left on device")
    assert str(small_disk / "checkpoint") in line
    assert "started again" not in second.output
    assert "Traceback" not in second.output
    assert_counted_once(small_disk / "checkpoint", small)
    assert main(["checkpoint", "verify", str(small_disk / "checkpoint")]) == 0


@pytest.mark.root
def test_a_training_that_finds_no_space_for_its_model_waits_for_some(
    start: Start, examples: Path, tmp_path: Path, small_disk: Path
) -> None:
    """Its ``out`` is elsewhere, so that all but the checkpoint has space."""
    filler, saved = small_disk / "filler", small_disk / "saved"
    filler.write_bytes(bytes(256 << 10))
    job = {
        "data": {"train": str(examples), "schema": {"label": "label", "sparse": ["shared"]}},
        "model": {"name": "fm", "dim": 4},
        "cluster": {"servers": 2, "trainers": 2},
        "checkpoint": {"path": str(saved)},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job | {"out": str(tmp_path / "out")}))  # JSON is YAML
    command = start("train", path, "--quiet")
    command.wait_for("tried again in 2 s", 60)
    # of a server that was slow there may be a file for a moment, or of the next try
    wait_until(lambda: not list(saved.glob("*.arrow")), WAIT_S, "what was not written whole to take no space")
    filler.unlink()
    assert command.finish(60) == 0, command.output
    assert f"{saved}: can't write: [Errno 28]" in command.output
    assert main(["checkpoint", "verify", str(saved)]) == 0
    assert "Traceback" not in command.output


@pytest.mark.root
def test_pushes_wait_while_the_disk_of_the_logs_is_full_and_count_once_when_there_is_space(
    start: Start, examples: Path, tmp_path: Path, small_disk: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    filler = small_disk / "filler"
    filler.write_bytes(bytes((64 << 20) - (200 << 10)))
    command = start(
        "launch", "--servers", "1", "--trainers", "1", "--durability", "log", "--log", small_disk / "log",
        "--out", tmp_path / "out", SCRIPT, examples, tmp_path / "checkpoint",
    )  # fmt: skip
    command.wait_for_file("logs/trainer-0.log", "no space", 40)
    filler.unlink()
    assert command.finish(60) == 0, command.output
    assert_counted_once(tmp_path / "checkpoint", examples)
    assert "Traceback" not in command.output


@pytest.mark.root
def test_a_disk_of_the_logs_that_stays_full_ends_the_run_once_and_names_the_disk(
    examples: Path, tmp_path: Path, small_disk: Path
) -> None:
    """Logs and journal share the disk, as with `pslib train` on one machine."""
    timing, log = Timing(request_s=8.0), str(small_disk / "log")
    config = ClusterConfig(servers=1, trainers=1, durability="log", restarts=3, timing=timing)
    began_s = time.monotonic()
    outcome, said = run_here(LocalLauncher(1), config, tmp_path, examples, log=log)
    assert outcome.exit_code == 69, said
    assert time.monotonic() - began_s < PATIENCE * (timing.request_s + 14)
    assert outcome.reason is not None
    assert "no space for" in outcome.reason
    assert log in outcome.reason
    assert outcome.final
    assert not [line for line in said if "started again" in line], said
    assert not [line for line in said if "Error: " in line or "Traceback" in line], said
    assert [line for line in said if line.startswith("trainer 0: ") and "asked for" in line], said


@pytest.mark.root
def test_processes_that_begin_on_a_full_disk_say_so_in_one_line(
    examples: Path, tmp_path: Path, small_disk: Path
) -> None:
    (small_disk / "filler").write_bytes(bytes(256 << 10))
    config, log = ClusterConfig(servers=1, trainers=1, durability="log", restarts=3), str(small_disk / "log")
    outcome, said = run_here(LocalLauncher(1), config, tmp_path, examples, log=log)
    assert outcome.exit_code == 69, said
    assert [line for line in said if f"{log}/coordinator: no space to begin" in line], said
    assert "Traceback" not in (tmp_path / "logs" / "coordinator.log").read_text()


# --- a coordinator that no process can reach ----------------------------------------------------------------


def test_a_coordinator_that_is_stopped_ends_the_run_within_three_silences_and_is_named(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=["--pause-s", "0.02", "--epochs", "99"])
    stopped_s = command.kill("coordinator", signal.SIGSTOP)
    assert command.finish(4 * SILENCE_S + 20) == 69, command.output
    assert time.monotonic() - stopped_s < PATIENCE * (3 * SILENCE_S + 14)
    assert "the coordinator at tcp://127.0.0.1:" in command.output
    assert "has not answered for" in command.output
    assert "Traceback" not in command.output


# --- a slow reader of replies ------------------------------------------------------------------------------


def test_a_client_that_reads_slowly_slows_no_other_and_is_told_when_its_time_is_over() -> None:
    rows, dim, timing = 20_000, 16, Timing(request_s=4.0, retry_s=0.5)
    transport = ZmqTransport()
    with cluster_of(trainers=2, transport=transport, listen="tcp://127.0.0.1:0", timing=timing) as cluster:
        quick = threading.Thread(target=lambda: clients.append(cluster.client()))
        clients: list[Client] = []
        quick.start()
        server = wait_for_server(cluster.embedded.servers)
        proxy = SlowProxy(server, 50_000.0)
        detour = DetouredTransport({server: proxy.address})
        slow = Client(detour, cluster.embedded.address, cluster.embedded.cluster_id, SystemClock(), timing)
        quick.join(20)
        (fast,) = clients
        try:
            keys = np.arange(rows, dtype=np.uint64)
            fast.setup([TableSpec("t", (PartSpec("v", dim),))])
            slow.setup([TableSpec("t", (PartSpec("v", dim),))])
            before_s = seconds_of(fast, keys)
            stuck = [slow.pull({"t": keys}) for _ in range(3)]  # 1.3 MB each: 26 s of answers
            while_s = seconds_of(fast, keys)
            with pytest.raises(WaitTimeoutError, match="waited 4 s"):
                stuck[-1].wait()
            assert while_s < 5 * before_s + 2.5
            proxy.rate = 1e9
            assert slow.pull({"t": keys[:10]}).wait().rows["t"].shape == (10, dim)
        finally:
            for client in (fast, slow):
                client.close()
            detour.close()
            proxy.close()


def wait_for_server(servers: list) -> str:
    wait_until(lambda: servers, WAIT_S, "a server")
    return servers[0].address


def seconds_of(client: Client, keys: np.ndarray) -> float:
    """Median time of 9 pulls."""
    times = []
    for _ in range(9):
        begin_s = time.monotonic()
        client.pull({"t": keys}).wait()
        times.append(time.monotonic() - begin_s)
    return sorted(times)[4]


# --- clocks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShiftedLauncher:
    """This machine, on which some processes live in other years, and their dates jump."""

    inner: LocalLauncher
    shifts_s: dict[str, float]

    def command(self, task: Task) -> Process:
        real = self.inner.command(task)
        path = os.pathsep.join([str(CLOCKS), real.environment.get("PYTHONPATH", "")])
        shift = str(self.shifts_s.get(task.name, 0.0))
        shifted = {**real.environment, "PYTHONPATH": path, "TEST_CLOCK_SHIFT_S": shift}
        return Process(real.arguments, shifted, real.where)

    def listen(self, task: Task) -> str:
        return self.inner.listen(task)


def test_clocks_that_are_100_days_apart_and_jump_change_nothing(examples: Path, tmp_path: Path) -> None:
    shifts = {"server 0": SHIFT_S, "server 1": 2 * SHIFT_S, "trainer 0": 3 * SHIFT_S}
    launcher, config = ShiftedLauncher(LocalLauncher(2), shifts), ClusterConfig(servers=2, trainers=2)
    outcome, said = run_here(launcher, config, tmp_path, examples, "--pause-s", "0.02")
    told = [line for line in said if not STARTS.search(line)]
    assert (outcome.exit_code, told) == (0, [])
    assert_counted_once(tmp_path / "checkpoint", examples)
    assert outcome.status["seconds"] < 120
