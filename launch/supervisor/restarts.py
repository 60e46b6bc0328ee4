"""Which processes of a cluster are started again when they end, and when: a pure machine of the launcher."""

from __future__ import annotations

from dataclasses import dataclass, field

from launch.supervisor.process import Task
from pslib.config import ClusterConfig
from pslib.errors import EXIT_INTERRUPTED, EXIT_SIGNALS, PreemptedError, PslibError, UnavailableError

__all__ = ["PAUSE_MAX_S", "PAUSE_S", "WELL_S", "Restarts", "is_mishap"]

PAUSE_S = 0.5
"""Before a process is started again for the first time; each time that it dies soon after, twice as long."""

WELL_S = 5.0
"""Who has run so long was well: its next start waits no longer than the first one."""

PAUSE_MAX_S = 10.0
"""A machine that is short of memory gets a while to recover; others wait for `Timing.restart_s` at least."""


def is_mishap(code: int) -> bool:
    """Whether a process that ended so may do better next time.

    Killed by a signal, lost on the way (ssh), a peer that was missing, a fault of ours: yes. A script's own
    error, a wrong configuration or an order to leave would be the same again.
    """
    if code in (UnavailableError.exit_code, PslibError.exit_code):
        return True
    return code < 0 or (code >= EXIT_SIGNALS and code != EXIT_INTERRUPTED)


@dataclass(slots=True)
class Restarts:
    """Counts starts, and keeps the pause before the next one.

    Attributes
    ----------
    config : ClusterConfig
        ``restarts`` is the limit for each process; ``durability`` says whether a server has anything to come
        back with.
    """

    config: ClusterConfig
    _started: dict[tuple[str, int], int] = field(default_factory=dict)
    _began_s: dict[tuple[str, int], float] = field(default_factory=dict)
    _in_a_row: dict[tuple[str, int], int] = field(default_factory=dict)
    _due_s: dict[Task, float] = field(default_factory=dict)

    def generation(self, task: Task) -> int:
        """How often a process has been started at this place before."""
        return self._started.get((task.role, task.number), 0)

    def ended(self, now_s: float, task: Task, code: int) -> str:
        """Take note of an end; what happens then, in words: empty when it is not started again."""
        tried, place = self.generation(task), (task.role, task.number)
        # a server that was asked to leave ends so when not all of its units could move: they are in its log
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
        """Whether this process is not the last one at its place."""
        return self.generation(task) < self.config.restarts and self._has_state(task)

    def waiting(self) -> list[Task]:
        """Processes that have ended and will be started again."""
        return list(self._due_s)

    def due(self, now_s: float) -> list[Task]:
        """Those whose time has come; they are started now."""
        due = [task for task, due_s in self._due_s.items() if now_s >= due_s]
        for task in due:
            del self._due_s[task]
            self._started[task.role, task.number] = self.generation(task) + 1
            self._began_s[task.role, task.number] = now_s
        return due

    def give_up(self) -> None:
        """Start nothing again: the run has failed."""
        self._due_s.clear()

    def _has_state(self, task: Task) -> bool:
        """Whether what it needs is still there; a trainer needs nothing, its leases are the coordinator's."""
        if task.role == "coordinator":
            return self.config.coordinator_comes_back
        return task.role == "trainer" or self.config.servers_come_back
