"""``pslib scale`` while real trainers train: the launcher starts servers, they join, and leave again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from launch.supervisor.discovery import find_cluster
from pslib.cluster import Watcher
from tests.support.processes.command import ROOT, Command
from tests.support.processes.counting_runs import SCRIPT, SLOWLY, Start, assert_counted_once, launch_counting
from tests.support.waiting import PATIENCE

STILL_MAX_S = 2.0
PACE = [*SLOWLY, "--epochs", "4"]


class Speed:
    """Looks at the examples of a run ten times a second: the longest time in which there were no more."""

    def __init__(self, logs: Path) -> None:
        self._watcher = Watcher(*find_cluster(str(logs), None))
        self._over = threading.Event()
        self.still_s = 0.0
        self.status: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        examples, since_s = 0, time.monotonic()
        while not self._over.wait(0.1):
            self.status = self._watcher.status(details=True)
            now_s = time.monotonic()
            if self.status["examples"] > examples:
                examples, since_s = self.status["examples"], now_s
            self.still_s = max(self.still_s, now_s - since_s)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._watcher.close()


def scale(folder: Path, *arguments: str) -> str:
    """Run ``pslib scale`` as a user would; return its output."""
    command = [sys.executable, "-P", "-m", "launch.cli.main", "scale", *arguments, str(folder)]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=80, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trainer_by_hand(folder: Path, examples: Path) -> subprocess.Popen[str]:
    """The script of the run, started once more by a user while it runs."""
    address, cluster_id = find_cluster(str(folder / "out"), None)
    environment = {"PSLIB_COORDINATOR": address, "PSLIB_CLUSTER_ID": cluster_id, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), str(examples), str(folder / "checkpoint"), *PACE]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_run_grows_from_two_servers_to_four_and_shrinks_back_and_every_example_counts_once(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command: Command = launch_counting(start, examples, tmp_path, more=PACE)
    speed = Speed(tmp_path / "out")
    third = trainer_by_hand(tmp_path, examples)
    try:
        grown = scale(tmp_path / "out", "--servers", "4")
        shrunk = scale(tmp_path / "out", "--servers", "2")
        assert speed.status["phase"] == "training", "the run was over before the servers had left"
        command.hurry()
        assert speed.still_s < PATIENCE * STILL_MAX_S
    finally:
        speed.close()
    assert "moved 2,080 of 2,080 units" in grown
    assert float(grown.rpartition("imbalance of rows (most / mean): ")[2].split()[0]) <= 1.1
    assert "servers 2, 3 leave" in shrunk
    assert "first batch" in third.communicate(timeout=60)[0]
    assert third.returncode == 0
    assert command.finish(30) == 0, command.output
    assert "starting server 2" in command.output
    assert "starting server 3" in command.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["pushes_sent"] == summary["pushes_applied"] > 0
    assert_counted_once(tmp_path / "checkpoint", examples, epochs=4)
