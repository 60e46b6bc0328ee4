"""A scheduler of ``pslib role`` processes here: it starts again what ends early, as Kubernetes does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[3]
DONE, WRONG = 0, 64


class RoleScheduler:
    """Processes of one job's cluster, on loopback addresses with ports of their own.

    Parameters
    ----------
    job : Path
    state : Path
        Folder of update logs and journal.
    port : int
        The coordinator's.
    host : str
        As an address has it.
    """

    def __init__(self, job: Path, state: Path, port: int, host: str = "127.0.0.1") -> None:
        self._job, self._state, self._port, self._host = job, state, port, host
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ends: list[tuple[str, int]] = []
        """Name and exit code of each process that has ended, in order."""

    def start(self, role: str, rank: int = 0) -> str:
        """Start a process, also one that has ended; return its name."""
        name = f"{role}-{rank}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PSLIB_")}
        environment |= {
            "PSLIB_CLUSTER_ID": "scheduled",
            "PSLIB_RANK": str(rank),
            "PSLIB_COORDINATOR": f"tcp://{self._host}:{self._port}",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "pslib", "role", role, str(self._job)]
        if role != "trainer":
            port = self._port if role == "coordinator" else 0
            command += ["--log", str(self._state), "--listen", f"tcp://{self._host}:{port}"]
        with (self._state / f"{name}.txt").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        return name

    def output(self, name: str) -> str:
        """Return the output of all processes of this name."""
        return (self._state / f"{name}.txt").read_text(encoding="utf-8", errors="replace")

    def said(self, name: str, line: str) -> None:
        """Wait until a process of this name has printed a text."""
        self.until(lambda: line in self.output(name), f"{name} to say {line!r}:\n{self.output(name)}")

    def reached_epoch(self, epoch: int) -> None:
        """Wait until the coordinator has told of this epoch or a later one: lines may leave one out."""
        told = re.compile(r"training epoch (\d+)/")
        self.until(
            lambda: any(int(one) >= epoch for one in told.findall(self.output("coordinator-0"))),
            f"epoch {epoch}",
        )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process, and wait for its end if it is SIGKILL."""
        process = self._processes[name]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait(PATIENCE_S)

    def turn(self) -> None:
        """Start every process again that has ended early; a trainer that is done, or wrong, stays ended."""
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is None:
                continue
            role, _, rank = name.rpartition("-")
            self.ends.append((name, code))
            del self._processes[name]
            if role != "trainer" or code not in (DONE, WRONG):
                self.start(role, int(rank))

    def until(self, condition: object, what: str, limit_s: float = 60.0) -> None:
        """Wait for a condition, with turns of the scheduler."""
        assert callable(condition)

        def turned() -> bool:
            self.turn()
            return bool(condition())

        wait_until(turned, limit_s, what, pause_s=0.1)

    def code_of(self, name: str) -> int | None:
        """Exit code with which the last process of this name has ended for good; None while one runs."""
        if name in self._processes:
            return None
        return next((code for ended, code in reversed(self.ends) if ended == name), None)

    def close(self) -> None:
        """End all processes: asked to first, then at once."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(PATIENCE_S)
