"""Output of processes: messages to the launcher, lines for the user, and output of scripts."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from launch.supervisor.run_spec import Task
from launch.worker.log_lines import LOG_PREFIX, MESSAGE_PREFIX, PEOPLE_PREFIX
from pslib.process.shutdown import ACKNOWLEDGED, ASKED

WORDS = ("started", "listening", "metrics", "result", "over", "final", "asked")
FAILED_S = 2.0
"""Delay of a failure's cause: a failed run ends within a heartbeat or two; a hanging one shows it."""


def has_left(line: str) -> bool:
    """Return whether a process says that it was asked to leave and has lost nothing."""
    return line in (ASKED, ACKNOWLEDGED)


class WorkerOutput:
    """Collector of lines from reader threads, which processes them in the launcher's thread.

    Parameters
    ----------
    echo : bool
        True to show the trainers' output.
    trainers : int
        Number of trainers; with more than one, their output lines get a name.
    say : callable
        Called with one line for the user.
    show : callable, optional
        Called with one that a process has said to the user; default: ``say``.

    Attributes
    ----------
    address : str or None
        Address of the coordinator, once reported.
    results : list of dict
        Results reported by trainers.
    last_status : dict
        Status sent by the coordinator at its end; empty before.
    pids : dict of Task to int
        Process id of each worker on its own machine.
    hosts : dict of Task to str
        Host name of that machine; empty if a worker has not reported it.
    metrics : dict of str to str
        Address of the metrics of each process, by its name.
    said : set of str
        Lines shown to the user.
    final : set of Task
        Processes with an error that a successor would repeat: the first of them, which ends the run.
    asked : bool
        True if a worker has reported a SIGTERM that was sent to all processes.
    leaving : bool
        True after all were asked to leave: a trainer that then says that it has done so is not shown.
    echoes : set of Task
        Processes with such an error after the first, for example a successor that retries a save on the full
        disk. Their lines are not shown.
    """

    def __init__(
        self,
        *,
        echo: bool,
        trainers: int,
        say: Callable[[str], None],
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.address: str | None = None
        self.results: list[dict[str, Any]] = []
        self.last_status: dict[str, Any] = {}
        self.pids: dict[Task, int] = {}
        self.hosts: dict[Task, str] = {}
        self.metrics: dict[str, str] = {}
        self.said: set[str] = set()
        self.final: set[Task] = set()
        self.asked = self.leaving = False
        self.echoes: set[Task] = set()
        self._failed_s = 0.0
        self._echo = echo
        self._named = trainers > 1
        self._say, self._show = say, show or say
        self._waiting: queue.SimpleQueue[tuple[Task, str, str]] = queue.SimpleQueue()

    def hear(self, task: Task, line: str) -> None:
        """Receive a line of a process; thread-safe."""
        word, _, rest = line.removeprefix(MESSAGE_PREFIX).partition(" ")
        if line.startswith(MESSAGE_PREFIX) and word in WORDS:
            self._waiting.put((task, word, rest))
        elif line.startswith(PEOPLE_PREFIX):
            self._waiting.put((task, "says", line.removeprefix(PEOPLE_PREFIX)))
        elif self._echo and task.role == "trainer" and not line.startswith(LOG_PREFIX):
            self._echo_line(f"[{task.name}] {line}" if self._named else line)

    def process_of(self, task: Task) -> tuple[int | None, str]:
        """Return process id and machine of a worker, as far as reported."""
        return self.pids.get(task), self.hosts.get(task, "")

    def take_in(self) -> None:
        """Process all received lines."""
        while not self._waiting.empty():
            task, word, rest = self._waiting.get()
            if word != "says":
                self._take_message(task, word, rest)
            elif not (rest in self.said or task in self.echoes or (self.leaving and has_left(rest))):
                self.said.add(rest)  # once: two trainers with the same problem print the same line
                self._show(f"{task.name}: {rest}")

    def tell_events(self, status: Mapping[str, Any], now_s: float) -> None:
        """Print events of the coordinator, and the cause of a failure if the run still goes on after a delay.

        At the end of a run the launcher prints the cause, unless a trainer has: "all trainers are lost"
        arrives before the line of that trainer. ``now_s`` is of a clock that excludes time in which the
        launcher is stopped, since the trainer's exit may not have been read.
        """
        error = status.get("error")
        for event in status.get("events", ()):
            if event != error:
                self.say_once(event)
        if error:
            self._failed_s = self._failed_s or now_s
            if now_s - self._failed_s > FAILED_S:
                self.say_once(error)

    def say_once(self, line: str) -> None:
        """Print a line, unless it was printed."""
        if line not in self.said:
            self.said.add(line)
            self._say(line)

    def _take_message(self, task: Task, word: str, rest: str) -> None:
        if word == "listening" and task.role == "coordinator":
            self.address = rest
        if word == "metrics":
            self.metrics[task.name] = rest
        self.asked |= word == "asked" and not rest
        if word == "final" and not rest:
            (self.echoes if self.final - {task} else self.final).add(task)
        if word == "started":
            self.final.discard(task)
            self.echoes.discard(task)
        with suppress(ValueError):  # a script may print anything
            if word == "started" and task not in self.pids:
                pid, _, host = rest.partition(" ")
                self.pids[task], self.hosts[task] = int(pid), host
            elif word == "result" and isinstance(result := json.loads(rest), dict):
                self.results.append(result)
            elif word == "over" and task.role == "coordinator":
                self.last_status = json.loads(rest)

    @staticmethod
    def _echo_line(line: str) -> None:
        with suppress(OSError):  # `pslib launch ... | head`: the run continues
            sys.stdout.write(f"{line}\n")  # as one, which keeps lines of threads apart
            sys.stdout.flush()
