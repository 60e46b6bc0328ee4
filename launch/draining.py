"""What a launcher does between its first SIGTERM and the end: everybody leaves in order, in bounded time.

Trainers first: they push what they have computed, wait until it is acknowledged, and give their leases back.
Then servers, which answer what has come; then the coordinator, which goes by itself when all have left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launch.process import Running, Task
from launch.verdict import Verdict, judge
from pslib.errors import PreemptedError
from pslib.preemption import HARD_S

__all__ = ["Draining"]

SERVERS_S = 10.0
"""How long servers may take when the last trainer has left: for what has come, and the end of their logs."""

COORDINATOR_S = 4.0
"""How long the coordinator may take to go by itself; it stays 3 s for who wants to read the last status."""


class Draining:
    """Asks processes to leave, and says when the run is over.

    Parameters
    ----------
    running : mapping of Task to Running
        All processes of the run.
    drain_s : float
        Time of the trainers, `pslib.config.Timing.drain_s`.
    waited : callable
        Whether something has been waited for too long, given what and the limit in seconds.
    """

    def __init__(
        self, running: Mapping[Task, Running], drain_s: float, waited: Callable[[str, float], bool]
    ) -> None:
        self._running, self._waited = running, waited
        self._limits_s = {
            "trainer": drain_s + HARD_S,
            "server": SERVERS_S,
            "coordinator": COORDINATOR_S,
        }
        self._asked: set[Task] = set()
        self.hurried = False
        """Set when somebody has asked twice: nobody is waited for."""

    def turn(self, exits: Mapping[Task, int | None]) -> Verdict | None:
        """Ask whose turn it is; the verdict when all have left, or time is over.

        Parameters
        ----------
        exits : mapping of Task to int or None
            How each process has ended.
        """
        over = Verdict(PreemptedError.exit_code)
        if self.hurried:
            return over
        verdict = judge(exits)
        if verdict is not None and verdict.culprit is not None and verdict.exit_code != over.exit_code:
            return verdict  # a server has died while trainers wanted to push
        for role, limit_s in self._limits_s.items():
            here = [task for task, code in exits.items() if code is None and task.role == role]
            if here:
                self._ask(here)
                who = role if role == "coordinator" else f"{role}s"
                return over if self._waited(f"the {who} to leave", limit_s) else None
        return over

    def _ask(self, tasks: list[Task]) -> None:
        for task in tasks:
            if task not in self._asked and task.role != "coordinator":
                self._asked.add(task)
                self._running[task].leave()
