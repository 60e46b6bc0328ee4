"""A launcher that stood still (Ctrl-Z, a paused virtual machine, no free core) takes no process for late."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from launch.supervisor.process import Running
from launch.supervisor.run_spec import Task
from launch.supervisor.worker_output import WorkerOutput
from pslib.clock import SystemClock
from tests.support.processes.standin_launch import run_standins


def test_a_coordinator_is_not_late_to_a_launcher_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count(1)

    class Stopped(SystemClock):
        """Stopped for an hour after its first few looks."""

        last = 0

        def now_s(self) -> float:
            Stopped.last = next(looks)
            return super().now_s() + 3600.0 * (Stopped.last > 3)

    hears = WorkerOutput.take_in

    def take_in(worker_output: WorkerOutput) -> None:
        """Its address is heard some looks after that hour, however fast it starts."""
        if Stopped.last > 8:
            hears(worker_output)

    monkeypatch.setattr("launch.supervisor.supervisor.SystemClock", Stopped)
    monkeypatch.setattr(WorkerOutput, "take_in", take_in)
    outcome, said = run_standins(tmp_path, {"trainer": "over"})
    assert (outcome.exit_code, said) == (0, [])


def test_the_last_line_of_a_process_is_not_missed_by_a_launcher_that_stood_still() -> None:
    tail: deque[str] = deque()

    class Pump:
        """Gets no turn in the first wait, of which the launcher sleeps through the end."""

        waits = 0

        def join(self, timeout: float) -> None:
            self.waits += 1
            if self.waits == 2:
                tail.append("pslib: no room")

        def is_alive(self) -> bool:
            return not tail

    pump: Any = Pump()
    process: Any = None
    running = Running(Task("trainer", 0), Path("log"), process, tail, pump)
    assert running.complaints() == ["no room"]
