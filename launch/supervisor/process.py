"""One process of a cluster as its launcher sees it: a log, a few lines of its own to us, an end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launch.worker.log_lines import LOG_PREFIX
from launch.worker.watchdog import LEAVE
from pslib.errors import ConfigurationError

__all__ = ["MESSAGE_PREFIX", "THIS_MACHINE", "Command", "Running", "Task", "describe_exit", "start"]

MESSAGE_PREFIX = "pslib-"
"""Lines of a worker's output that begin so are for its launcher: ``pslib-word rest of the line``."""

LINE_BYTES_MAX = 1 << 16
"""A worker that prints for ever without a line end must not fill the launcher's memory."""

MESSAGE_BYTES_MAX = 64 << 20
"""Of a line for the launcher, of use as a whole only: a coordinator's last has the results of all epochs."""

THIS_MACHINE = "localhost"
"""Where a process runs that is a child of the launcher: its end is told by the kernel that we can ask."""

WAITS = "waiting "
"""How lines begin with which a process says, now and then, for whom it waits."""

TAIL_LINES = 40
"""Last lines kept for the report of a process that failed."""


@dataclass(frozen=True, slots=True)
class Task:
    """One process that a cluster needs, before it is known where it runs.

    Attributes
    ----------
    role : str
        "coordinator", "server" or "trainer".
    number : int
        0-based among those of its role, in the launcher's order; the rank is the coordinator's to give.
    arguments : tuple of str
        What follows ``python -m launch.worker.main ROLE``.
    """

    role: str
    number: int
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """How people read it: ``server 1``."""
        return self.role if self.role == "coordinator" else f"{self.role} {self.number}"


@dataclass(frozen=True, slots=True)
class Command:
    """A process on this machine that stands for the worker: the worker itself, or ssh, srun, kubectl, ...

    It must pass on standard output, end when the worker ends, with its exit code (128 + n for signal n), and
    end the worker when its own standard input is closed.

    Attributes
    ----------
    arguments : tuple of str
        The command line.
    environment : mapping
        The whole environment of the command.
    where : str
        The machine, for people.
    remarks : str
        How lines begin that are the command's own and not the worker's: they go into the log, and are told
        where the worker has said nothing. Empty: there are none.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    where: str
    remarks: str = ""


@dataclass(slots=True)
class Running:
    """A started process.

    Attributes
    ----------
    task : Task
    where : str
        The machine, for people.
    log : Path
        All that it printed.
    process : subprocess.Popen
        The command; the worker itself only where it runs on this machine.
    tail : deque of str
        The last lines of it.
    pump : threading.Thread
        Copies output to the log until there is no more.
    killed : bool
        Whether the launcher itself has killed it.
    remarks : str
        As `Command.remarks`.
    """

    task: Task
    where: str
    log: Path
    process: subprocess.Popen[bytes]
    tail: deque[str]
    pump: threading.Thread
    killed: bool = False
    remarks: str = ""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""
        return self.process.poll()

    def leave(self) -> None:
        """Ask it to finish what it has begun and to leave; its guard passes it on as SIGTERM."""
        if self.process.stdin is not None:
            with suppress(OSError, ValueError):
                self.process.stdin.write(LEAVE + b"\n")
                self.process.stdin.flush()

    def stop(self) -> None:
        """Ask it to end; `launch.worker.watchdog` kills it a little later if it does not."""
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()

    def kill(self) -> None:
        """End it, and what it has started on this machine, now."""
        self.killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def hear_out(self) -> None:
        """Give its last lines, which may still be on their way when it has ended, a second to come.

        In pieces: a launcher that stands still for longer than that has not waited, only slept.
        """
        for _ in range(10):
            self.pump.join(timeout=0.1)
            if not self.pump.is_alive():
                return

    def complaints(self) -> list[str]:
        """What it said about its own end: its ``pslib:`` lines, else its last line.

        What it told of its waits before is left out, unless it has told nothing else: such a wait is over.
        """
        self.hear_out()
        own = [line.removeprefix("pslib: ") for line in self.tail if line.startswith("pslib: ")]
        others = [line for line in self.tail if line.strip() and not line.startswith(MESSAGE_PREFIX)]
        last = [line for line in others if not is_remark(line, self.remarks)][-1:] or others[-1:]
        return [line for line in own if not line.startswith(WAITS)] or own[-1:] or last


def start(
    task: Task,
    command: Command,
    log: Path,
    listen: Callable[[Task, str], None],
    first_line: str | None = None,
    missed: Callable[[str], None] | None = None,
) -> Running:
    """Start a command; copy its output to ``log`` and give each line of it to ``listen``.

    ``first_line`` is what it finds on its standard input: its key. No other process can read it there.

    ``missed`` hears, in a line, that ``log`` can't be written, and the process is started all the same: a run
    that is under way does not end for it. None: it is an error.

    ``listen`` is called from a thread of its own, in the order of the lines. The process leads its own group,
    so that Ctrl-C of a terminal reaches the launcher alone, which then ends all in order.

    Raises
    ------
    ConfigurationError
        When ``log`` can't be written, without ``missed``; nothing has been started then.
    OSError
        When the command can't be started.
    """
    try:
        kept = log.open("ab", buffering=0)  # so that closing it has nothing to write, which may fail
    except OSError as error:
        line = f"{log}: the log of {task.name} can't be written: {error.strerror}"
        if missed is None:
            raise ConfigurationError(f"{line}; make room for it, or give another out") from error
        missed(f"{line}; what it says from now on is in none")
        kept = open(os.devnull, "ab", buffering=0)  # noqa: SIM115  # the pump closes it
    try:
        process = subprocess.Popen(
            command.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(command.environment),
            start_new_session=True,
        )
    except OSError:
        kept.close()
        raise
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    assert process.stdout is not None
    pump = threading.Thread(
        target=_pump,
        args=(task, process.stdout, kept, tail, listen, command.remarks),
        name=f"log of {task.name}",
        daemon=True,
    )
    if first_line is not None and process.stdin is not None:
        with suppress(OSError):  # it has ended; its exit code says more
            process.stdin.write(first_line.encode() + b"\n")
            process.stdin.flush()
    running = Running(task, command.where, log, process, tail, pump, remarks=command.remarks)
    pump.start()
    return running


def is_remark(line: str, remarks: str) -> bool:
    """Whether a line is the command's own, which is not the worker (`Command.remarks`)."""
    return bool(remarks) and line.startswith(remarks)


def _pump(
    task: Task,
    output: IO[bytes],
    log: IO[bytes],
    tail: deque[str],
    listen: Callable[[Task, str], None],
    remarks: str,
) -> None:
    with output, log:
        while data := output.readline(LINE_BYTES_MAX):
            if data.startswith(MESSAGE_PREFIX.encode()) and not data.endswith(b"\n"):
                data += output.readline(MESSAGE_BYTES_MAX)
            with suppress(OSError):  # a full disk must not stop it, or the worker would wait for ever
                log.write(data)
            line = data.decode("utf-8", "replace").rstrip("\r\n")
            if not line.startswith(LOG_PREFIX):  # however many there are, what it said of its end stays
                tail.append(line)
            if not is_remark(line, remarks):
                listen(task, line)


def describe_exit(exit_code: int) -> str:
    """``was killed by signal 9 (SIGKILL)`` or ``ended with exit code 70``."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if 0 < number < signal.NSIG and (exit_code < 0 or exit_code != 128 + signal.SIGINT):
        with suppress(ValueError):
            return f"was killed by signal {number} ({signal.Signals(number).name})"
    return f"ended with exit code {exit_code}"
