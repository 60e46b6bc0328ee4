"""Restarts of ended processes, and their times: a pure machine of the launcher."""

from __future__ import annotations

from dataclasses import dataclass, field

from launch.supervisor.run_spec import Task
from pslib.config import ClusterConfig
from pslib.errors import EXIT_INTERRUPTED, EXIT_SIGNALS, PreemptedError, PslibError, UnavailableError

PAUSE_S = 0.5
"""Pause before the first restart of a process; doubled each time that it dies soon after."""

WELL_S = 5.0
"""Run time after which the pause of a process is reset to the first one."""

PAUSE_MAX_S = 10.0
"""Longest pause: time for a machine without memory to recover; peers wait at least `Timing.restart_s`."""


def is_mishap(code: int) -> bool:
    """Return whether a restart may fix the cause of this exit code.

    It may after a kill by a signal, a lost connection (ssh), a missing peer or an internal error. A script's
    own error, a wrong configuration and a request to leave would repeat.
    """
    if code in (UnavailableError.exit_code, PslibError.exit_code):
        return True
    return code < 0 or (code >= EXIT_SIGNALS and code != EXIT_INTERRUPTED)


@dataclass(slots=True)
class Restarts:
    """Counter of starts, with the pause before the next one.

    Attributes
    ----------
    config : ClusterConfig
        ``restarts`` is the limit for each process; ``durability`` decides whether a server can recover.
    """

    config: ClusterConfig
    _started: dict[tuple[str, int], int] = field(default_factory=dict)
    _began_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _in_a_row: dict[tuple[str, int], int] = field(default_factory=dict)
    _due_s: dict[Task, float] = field(default_factory=dict)

    def generation(self, task: Task) -> int:
        """Return the number of earlier starts of this task."""
        return self._started.get((task.role, task.number), 0)

    def ended(self, now_s: float, task: Task, code: int) -> str:
        """Record an exit; return a clause on the restart, empty when there is none."""
        tried, place = self.generation(task), (task.role, task.number)
        # exit of a leaving server whose units could not all move: they are in its log
        has_more = code == PreemptedError.exit_code and task.role == "server"
        if not self.may_follow(task) or not (is_mishap(code) or has_more):
            return ""
        if now_s - self._began_s.get(place, now_s) > WELL_S:
            self._in_a_row[place] = 0
        pause_s = min(PAUSE_S * 2 ** self._in_a_row.get(place, 0), PAUSE_MAX_S)
        self._in_a_row[place] = self._in_a_row.get(place, 0) + 1
        self._due_s[task] = now_s + pause_s
        return f"started again in {pause_s:g} s ({tried + 1} of {self.config.restarts})"

    def may_follow(self, task: Task) -> bool:
        """Return whether a successor of this process may be started."""
        return self.generation(task) < self.config.restarts and self._has_state(task)

    def waiting(self) -> list[Task]:
        """Ended processes that will be restarted."""
        return list(self._due_s)

    def due(self, now_s: float) -> list[Task]:
        """Return the processes to restart now."""
        due = [task for task, due_s in self._due_s.items() if now_s >= due_s]
        for task in due:
            del self._due_s[task]
            self._started[task.role, task.number] = self.generation(task) + 1
            self._began_s[task.role, task.number] = now_s
        return due

    def give_up(self) -> None:
        """Cancel all restarts: the run has failed."""
        self._due_s.clear()

    def _has_state(self, task: Task) -> bool:
        """Return whether its state still exists; a trainer has none, its leases are the coordinator's."""
        if task.role == "coordinator":
            return self.config.coordinator_comes_back
        return task.role == "trainer" or self.config.servers_come_back
