"""Processes of a cluster in their launcher: start, log file, messages to the launcher, exit."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launch.supervisor.run_spec import Command, Identity, Launcher, MetricsPlan, Plan, Process, Task
from launch.supervisor.worker_output import WorkerOutput
from launch.worker.log_lines import LOG_PREFIX, MESSAGE_PREFIX, log_line
from launch.worker.watchdog import FROM_INPUT, LEAVE
from pslib.errors import ConfigurationError

LINE_BYTES_MAX = 1 << 16
"""Limit of a line: endless output without a line end must not fill the launcher's memory."""

MESSAGE_BYTES_MAX = 64 << 20
"""Limit of a message, which is never cut: a coordinator's last has the results of all epochs."""

WAITS = "waiting "
"""Prefix of a process's periodic lines on its waits."""

TAIL_LINES = 40
"""Number of last lines kept for the report of a failed process."""


@dataclass(slots=True)
class Running:
    """A started process.

    Attributes
    ----------
    task : Task
    log : Path
        File with all its output.
    process : Process
        Process of the command; the worker itself only if it runs on this machine.
    tail : deque of str
        Last lines of the log.
    pump : threading.Thread
        Thread that copies output to the log until it ends.
    killed : bool
        True if the launcher has killed it.
    remarks : str
        As `Command.remarks`.
    """

    task: Task
    log: Path
    process: Process
    tail: deque[str]
    pump: threading.Thread
    killed: bool = False
    remarks: str = ""

    @property
    def where(self) -> str:
        """The machine, for people."""
        return self.process.where

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs, -n if killed by signal n."""
        return self.process.poll()

    def leave(self) -> None:
        """Ask it to finish its work and leave; its watchdog passes this on as SIGTERM."""
        if self.process.stdin is not None:
            with suppress(OSError, ValueError):
                self.process.stdin.write(LEAVE + b"\n")
                self.process.stdin.flush()

    def stop(self) -> None:
        """Ask it to end; `launch.worker.watchdog` kills it a little later if it still runs."""
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()

    def kill(self) -> None:
        """Kill it and its child processes on this machine at once."""
        self.killed = True
        self.process.kill()

    def hear_out(self) -> None:
        """Wait up to a second for last lines that are still in transit after its exit.

        The wait is split, since a launcher that was stopped for longer has not waited.
        """
        for _ in range(10):
            self.pump.join(timeout=0.1)
            if not self.pump.is_alive():
                return

    def complaints(self) -> list[str]:
        """Return its lines about its own exit: the ``pslib:`` lines, else the last line.

        Earlier lines on waits are left out, unless there are no others, since those waits are over.
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
    """Start a command; copy its output to ``log`` and pass each line to ``listen``.

    ``first_line`` is written to its standard input: its key, which no other process can read there.

    ``missed`` is called with a line when ``log`` can't be written, and the process is started without a log,
    so that a started run continues. None: it is an error.

    ``listen`` is called from a separate thread, in the order of the lines.

    Raises
    ------
    ConfigurationError
        When ``log`` can't be written and ``missed`` is None; nothing has been started then.
    OSError
        When the command can't be started.
    """
    try:
        kept = log.open("ab", buffering=0)  # unbuffered, so that closing writes nothing and can't fail
    except OSError as error:
        line = f"{log}: the log of {task.name} can't be written: {error.strerror}"
        if missed is None:
            raise ConfigurationError(f"{line}; make room for it, or give another out") from error
        missed(f"{line}; what it says from now on is in none")
        kept = open(os.devnull, "ab", buffering=0)  # noqa: SIM115  # the pump closes it
    try:
        process = command.start()
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
        with suppress(OSError):  # it has ended; its exit code is reported
            process.stdin.write(first_line.encode() + b"\n")
            process.stdin.flush()
    running = Running(task, log, process, tail, pump, remarks=command.remarks)
    pump.start()
    return running


def is_remark(line: str, remarks: str) -> bool:
    """Return whether a line is of the command itself, not of the worker (`Command.remarks`)."""
    return bool(remarks) and line.startswith(remarks)


def _pump(
    task: Task,
    output: IO[bytes],
    log: IO[bytes],
    tail: deque[str],
    listen: Callable[[Task, str], None],
    remarks: str,
) -> None:
    process = task.name.replace(" ", "-")
    with output, log:
        while data := output.readline(LINE_BYTES_MAX):
            if data.startswith(MESSAGE_PREFIX.encode()) and not data.endswith(b"\n"):
                data += output.readline(MESSAGE_BYTES_MAX)
            line = data.decode("utf-8", "replace").rstrip("\r\n")
            with suppress(OSError):  # a full disk must not stop the copy, or the worker would block
                log.write(f"{log_line(line, process)}\n".encode())
            if not line.startswith(LOG_PREFIX):  # log lines must not displace the lines on its exit
                tail.append(line)
            if not is_remark(line, remarks):
                listen(task, line)


def describe_exit(exit_code: int) -> str:
    """Describe an exit: ``was killed by signal 9 (SIGKILL)`` or ``ended with exit code 70``."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if 0 < number < signal.NSIG and (exit_code < 0 or exit_code != 128 + signal.SIGINT):
        with suppress(ValueError):
            return f"was killed by signal {number} ({signal.Signals(number).name})"
    return f"ended with exit code {exit_code}"


class Starts:
    """Starter of coordinator, servers and trainers of one run.

    Parameters
    ----------
    launcher : Launcher
        Place to run.
    plan : Plan
        Description of the run.
    running : dict of Task to Running
        Receives each started process.
    worker_output : WorkerOutput
        Receives output of the processes; has the coordinator's address.
    generation : callable
        Returns the number of restarts of a task.
    say : callable
        Called with a line when a log can't be written after the run has begun; before, it is an error.

    Attributes
    ----------
    launch : Identity
        Identity of the processes.
    """

    def __init__(
        self,
        launcher: Launcher,
        plan: Plan,
        running: dict[Task, Running],
        worker_output: WorkerOutput,
        generation: Callable[[Task], int],
        say: Callable[[str], None],
    ) -> None:
        self.launch = plan.launch or Identity(plan.cluster_id)
        self._launcher, self._plan, self._generation = launcher, plan, generation
        self._running, self._worker_output, self._say = running, worker_output, say
        self._own: dict[tuple[str, int], tuple[str, ...]] = {}
        self._begun = False
        """True once all processes have been started."""

    def coordinator(self) -> None:
        """Start the coordinator, which reports its address."""
        config, id_ = self._plan.config, ("--cluster-id", self._plan.cluster_id)
        journal = () if self._plan.log is None else ("--journal", f"{self._plan.log}/coordinator")
        again = ("--resume",) if self.launch.launch else ()
        self._start("coordinator", 0, (*id_, "--config", json.dumps(config.to_dict()), *journal, *again))

    def the_others(self) -> None:
        """Start all servers and trainers, after the coordinator listens."""
        for number in range(self._plan.config.servers):
            self.server(number)
        for number in range(self._plan.config.trainers):
            own = ("--rank", str(number), *self._plan.trainer_arguments)
            self._start("trainer", number, (*self._common(), *own))
        self._begun = True

    def server(self, rank: int) -> None:
        """Start a server."""
        log = () if self._plan.log is None else ("--log", self._plan.log)
        self._start("server", rank, (*self._common(), "--rank", str(rank), *log))

    def again(self, task: Task) -> Task:
        """Start a successor of an ended process, with a higher generation."""
        return self._start(task.role, task.number, self._own[task.role, task.number])

    def _common(self) -> tuple[str, ...]:
        assert self._worker_output.address is not None
        return "--cluster-id", self._plan.cluster_id, "--coordinator", self._worker_output.address

    def _start(self, role: str, number: int, own: tuple[str, ...]) -> Task:
        """Start a process with its own arguments."""
        self._own[role, number] = own
        task = Task(role, number)
        generation = self.launch.generation + self._generation(task)
        again = generation > 0 and role != "coordinator"
        arguments = ("--generation", str(generation), *own) if again else own
        if role != "trainer":
            arguments = ("--listen", self._listen(task), *arguments)
        if self._plan.metrics is not None:
            arguments = ("--metrics", self._metrics_address(task, self._plan.metrics), *arguments)
        key = self._plan.key_of(role)
        task = Task(role, number, arguments if key is None else ("--keys", FROM_INPUT, *arguments))
        command = self._launcher.command(task)
        log = self._plan.logs / f"{task.name.replace(' ', '-')}.log"
        self._worker_output.pids.pop(task, None)
        self._worker_output.hosts.pop(task, None)
        try:
            self._running[task] = start(
                task,
                command,
                log,
                self._worker_output.hear,
                None if key is None else key.to_text(),
                self._say if self._begun else None,
            )
        except OSError as error:
            raise ConfigurationError(
                f"{task.name} can't be started with {command.arguments[0]!r}: {error.strerror}"
            ) from error
        return task

    def _metrics_address(self, task: Task, metrics: MetricsPlan) -> str:
        """Return the address of a process's metrics: where it listens, so on loopback if all are here."""
        address = self._launcher.listen(task).rpartition(":")[0]
        return f"{address}:{metrics.port if task.role == 'coordinator' else 0}"

    def _listen(self, task: Task) -> str:
        """Return the listen address; a coordinator's successor keeps the known one."""
        before = self._worker_output.address if task.role == "coordinator" else None
        return before or self._launcher.listen(task)
