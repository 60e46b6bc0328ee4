"""What a launcher does between its first SIGTERM and the end: everybody leaves in order, in bounded time.

Trainers first: they push what they have computed, wait until it is acknowledged, and give their leases back.
Then servers, which answer what has come; then the coordinator, which goes by itself when all have left.
Where rows live in memory alone, the training is saved before anybody leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from launch.supervisor.outcome import RunOutcome, judge
from launch.supervisor.process import Running, Task
from launch.supervisor.status import Watcher
from pslib.clock import SystemClock
from pslib.errors import PreemptedError, PslibError
from pslib.process.shutdown import HARD_S

__all__ = ["GracefulStop", "LastSave"]

LOOK_S = 0.2
SERVERS_S = 10.0
"""How long servers may take when the last trainer has left: for what has come, and the end of their logs."""

COORDINATOR_S = 4.0
"""How long the coordinator may take to go by itself; it stays 3 s for who wants to read the last status."""


class LastSave:
    """Asks for a checkpoint in a thread of its own, and waits until there is one.

    Parameters
    ----------
    watch : callable
        Makes a `Watcher`; called in that thread.

    Attributes
    ----------
    over : bool
        Whether there is one, or none will be made.
    """

    def __init__(self, watch: Callable[[], Watcher]) -> None:
        self.over = False
        self._watch = watch
        threading.Thread(target=self._run, name="last checkpoint", daemon=True).start()

    def _run(self) -> None:
        try:
            watcher = self._watch()
            try:
                soon = watcher.save_soon()
                while soon:
                    SystemClock().sleep_s(LOOK_S)
                    soon = bool(watcher.status().get("saves_soon"))
            finally:
                watcher.close()
        except PslibError:  # the coordinator has gone; its end is told elsewhere
            pass
        finally:
            self.over = True


class GracefulStop:
    """Asks processes to leave, and says when the run is over.

    Parameters
    ----------
    running : mapping of Task to Running
        All processes of the run.
    drain_s : float
        Time of the trainers, `pslib.config.Timing.drain_s`.
    waited : callable
        Whether something has been waited for too long, given what and the limit in seconds.
    save : LastSave or None
        A checkpoint that is waited for first, as long as for trainers.
    """

    def __init__(
        self,
        running: Mapping[Task, Running],
        drain_s: float,
        waited: Callable[[str, float], bool],
        save: LastSave | None = None,
    ) -> None:
        self._running, self._waited, self._save, self._drain_s = running, waited, save, drain_s
        self._limits_s = {
            "trainer": drain_s + HARD_S,
            "server": SERVERS_S,
            "coordinator": COORDINATOR_S,
        }
        self._asked: set[Task] = set()
        self.hurried = False
        """Set when somebody has asked twice: nobody is waited for."""

    def turn(self, exits: Mapping[Task, int | None]) -> RunOutcome | None:
        """Ask whose turn it is; the verdict when all have left, or time is over.

        Parameters
        ----------
        exits : mapping of Task to int or None
            How each process has ended.
        """
        over = RunOutcome(PreemptedError.exit_code)
        if self.hurried:
            return over
        verdict = judge(exits)
        if verdict is not None and verdict.culprit is not None and verdict.exit_code != over.exit_code:
            return verdict  # a server has died while trainers wanted to push
        if self._save is not None and not self._save.over:
            if not self._waited("the checkpoint", self._drain_s):
                return None
            self._save = None
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
