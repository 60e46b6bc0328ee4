"""One ``pslib`` command with real processes, for tests: its output, its processes, its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[3]
MARK = "PSLIB_TEST_COMMAND"
LISTENS = "0A"
"""State of a listening socket in the kernel's list of sockets."""


def listening_sockets() -> set[str]:
    """All TCP sockets of this machine that listen, by what no other socket is named, ever.

    A port that was given back is another process's a moment later, and tells nothing.
    """
    found = set()
    for list_ in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = list_.read_text().splitlines()[1:] if list_.exists() else []
        found |= {f"socket:[{line[9]}]" for line in map(str.split, lines) if line[3] == LISTENS}
    return found


class Command:
    """A command that runs in the background, the leader of its own process group as in a terminal.

    Everything it starts inherits a mark in its environment, so that no process is overlooked: neither those
    that watch over workers, nor those whose parent has died.
    """

    def __init__(self, folder: Path, *arguments: str | Path, more: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.out = folder / "out"
        self._mark = f"{MARK}={folder}-{time.monotonic_ns()}"
        self._output = folder / f"output-{self._mark.rpartition('-')[2]}.txt"
        name, _, value = self._mark.partition("=")
        environment = {**os.environ, name: value, "PYTHONUNBUFFERED": "1"}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "launch.cli.main", *map(str, arguments)],
                env={**environment, "PYTHONPATH": str(ROOT), **(more or {})},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """The output of the command so far."""
        return self._output.read_text()

    def lines(self, word: str) -> list[str]:
        """Lines of the output that hold a word."""
        return [line for line in self.output.splitlines() if word in line]

    def wait_for(self, text: str, limit_s: float = 30.0) -> None:
        """Wait until the command has said something."""
        self.wait(lambda: text in self.output, limit_s, repr(text))

    def wait_for_file(self, name: str, text: str, limit_s: float = 30.0) -> None:
        """Wait until a file below ``out`` holds a text."""
        path = self.out / name
        self.wait(lambda: path.exists() and text in path.read_text(), limit_s, f"{text!r} in {name}")

    def wait(self, condition: Callable[[], object], limit_s: float, what: str) -> None:
        """Wait for a condition; a command that ends before it comes is waited for no longer."""
        wait_until(lambda: condition() or self.process.poll() is not None, limit_s, what)
        assert condition(), f"ended with {self.process.returncode} before {what}:\n{self.output}"

    def pid_of(self, worker: str) -> int:
        """Process id of ``server 0``, ``trainer 1`` or ``coordinator``, as its log says last."""
        log = self.out / "logs" / f"{worker.replace(' ', '-')}.log"
        wait_until(lambda: log.exists() and "pslib-started" in log.read_text(), 30, f"{worker} to start")
        return int(log.read_text().rpartition("pslib-started ")[2].split()[0])

    def kill(self, worker: str, number: int = signal.SIGKILL) -> float:
        """Send a signal to one worker; the time at which it was sent."""
        os.kill(self.pid_of(worker), number)
        return time.monotonic()

    def hurry(self) -> None:
        """Let the counting script make no pauses any more: what a test does to its run is done."""
        (self.folder / "hurry").touch()

    def finish(self, limit_s: float) -> int:
        """Wait for the end; the exit code."""
        try:
            return self.process.wait(PATIENCE * limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {PATIENCE * limit_s:g} s:\n{self.output}") from None

    def processes(self) -> list[psutil.Process]:
        """All live processes with this command's mark, itself included."""
        found = []
        mark = self._mark.encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError, psutil.NoSuchProcess):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(psutil.Process(int(entry.name)))
        return found

    def listening(self) -> set[str]:
        """The TCP sockets on which its processes listen, as `listening_sockets` names them."""
        held = set()
        for process in self.processes():
            with suppress(OSError):
                for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
                    with suppress(OSError):  # closed since
                        held.add(os.readlink(descriptor))
        return listening_sockets() & held

    def left_over(self, limit_s: float = 10.0) -> list[str]:
        """Return descriptions of the processes that remain after a while; tests expect none."""
        end_s = time.monotonic() + PATIENCE * limit_s
        while (left := self.processes()) and time.monotonic() < end_s:
            time.sleep(0.05)
        words = []
        for process in left:
            with suppress(psutil.NoSuchProcess):
                words.append(f"{process.pid} {process.status()}: {' '.join(process.cmdline())}")
        return words

    def clean_up(self) -> None:
        """End whatever is left, by force."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10)
