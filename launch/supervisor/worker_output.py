"""What processes say: lines for their launcher, lines for people, and the output of scripts."""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from launch.supervisor.process import MESSAGE_PREFIX, Task
from launch.worker.log_lines import LOG_PREFIX

__all__ = ["WorkerOutput"]

PEOPLE_PREFIX = "pslib: "
WORDS = ("started", "listening", "result", "over", "final", "asked")
FAILED_S = 2.0
"""A run that has failed ends within a heartbeat or two; one that hangs then is told why it has failed."""


class WorkerOutput:
    """Takes lines from the threads that read them, and works on them in the launcher's own.

    Parameters
    ----------
    echo : bool
        Whether to show what trainers print.
    trainers : int
        With more than one, what they print gets their names.
    say : callable
        Called with one line for people.

    Attributes
    ----------
    address : str or None
        Where the coordinator listens, once it has said so.
    results : list of dict
        What trainers have reported.
    last_status : dict
        What the coordinator has said of the cluster at its end; empty until then.
    pids : dict of Task to int
        Process id of each worker on its own machine.
    hosts : dict of Task to str
        What that machine calls itself; empty where a worker has not said it.
    said : set of str
        Lines that people have seen.
    final : set of Task
        Who would only end again with the error that it ends with: the first of them, which ends the run.
    asked : bool
        Whether a worker has been asked to leave by SIGTERM that comes to all, and has told it.
    echoes : set of Task
        Who came to such an error after that: the successor of a save, say, which finds the disk as full.
        Nothing that it says is told.
    """

    def __init__(self, *, echo: bool, trainers: int, say: Callable[[str], None]) -> None:
        self.address: str | None = None
        self.results: list[dict[str, Any]] = []
        self.last_status: dict[str, Any] = {}
        self.pids: dict[Task, int] = {}
        self.hosts: dict[Task, str] = {}
        self.said: set[str] = set()
        self.final: set[Task] = set()
        self.asked = False
        self.echoes: set[Task] = set()
        self._failed_s = 0.0
        self._echo = echo
        self._named = trainers > 1
        self._say = say
        self._waiting: queue.SimpleQueue[tuple[Task, str, str]] = queue.SimpleQueue()

    def hear(self, task: Task, line: str) -> None:
        """Take a line of a process; any thread may call it."""
        word, _, rest = line.removeprefix(MESSAGE_PREFIX).partition(" ")
        if line.startswith(MESSAGE_PREFIX) and word in WORDS:
            self._waiting.put((task, word, rest))
        elif line.startswith(PEOPLE_PREFIX):
            self._waiting.put((task, "says", line.removeprefix(PEOPLE_PREFIX)))
        elif self._echo and task.role == "trainer" and not line.startswith(LOG_PREFIX):
            self._show(f"[{task.name}] {line}" if self._named else line)

    def process_of(self, task: Task) -> tuple[int | None, str]:
        """Process id and machine of a worker, as far as it has told them."""
        return self.pids.get(task), self.hosts.get(task, "")

    def take_in(self) -> None:
        """Work on all lines that have come."""
        while not self._waiting.empty():
            task, word, rest = self._waiting.get()
            if word == "says" and task not in self.echoes:
                self.say_once(rest, f"{task.name}: ")
            elif word != "says":
                self._take_message(task, word, rest)

    def tell_events(self, status: Mapping[str, Any], now_s: float) -> None:
        """Tell what the coordinator reports; why the run has failed a little later, if it goes on so long.

        At its end the launcher says it, unless a trainer has told the cause itself: "all trainers are lost"
        reaches us before the line of the trainer that was. So ``now_s`` is that of a clock which does not
        count when the launcher stands still: the trainer's end may be there, and nobody has looked.
        """
        error = status.get("error")
        for event in status.get("events", ()):
            if event != error:
                self.say_once(event)
        if error:
            self._failed_s = self._failed_s or now_s
            if now_s - self._failed_s > FAILED_S:
                self.say_once(error)

    def say_once(self, line: str, prefix: str = "") -> None:
        """Tell people, unless they know: two trainers that stumble over the same thing say the same line."""
        if line not in self.said:
            self.said.add(line)
            self._say(f"{prefix}{line}")

    def _take_message(self, task: Task, word: str, rest: str) -> None:
        if word == "listening" and task.role == "coordinator":
            self.address = rest
        self.asked |= word == "asked" and not rest
        if word == "final" and not rest:
            (self.echoes if self.final - {task} else self.final).add(task)
        if word == "started":
            self.final.discard(task)
            self.echoes.discard(task)
        with suppress(ValueError):  # a user's script may print anything
            if word == "started" and task not in self.pids:
                pid, _, host = rest.partition(" ")
                self.pids[task], self.hosts[task] = int(pid), host
            elif word == "result" and isinstance(result := json.loads(rest), dict):
                self.results.append(result)
            elif word == "over" and task.role == "coordinator":
                self.last_status = json.loads(rest)

    @staticmethod
    def _show(line: str) -> None:
        from tqdm import tqdm

        with suppress(OSError):  # `pslib launch ... | head`: the run goes on
            tqdm.write(line, file=sys.stdout)  # keeps a bar and other threads' lines apart
            sys.stdout.flush()
