"""The coordinator's status as a launcher reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from launch.supervisor.process import Task
from pslib.clock import Clock
from pslib.errors import PslibError
from pslib.storage import shown
from pslib.text import counted

if TYPE_CHECKING:
    from pslib.transport import Keys

__all__ = ["NEWS_S", "StatusPoller", "Watcher", "lost_with", "watch_coordinator"]

POLL_S = 0.5
"""Fine enough for a progress bar; two small messages a second."""

NEWS_S = 2.0
"""How long to wait for the coordinator's status when a process has ended; a few `POLL_S`."""


class Watcher(Protocol):
    """What `pslib.cluster.watch` gives."""

    def status(self) -> dict[str, Any]:
        """Cumulative counters of the cluster, and what it is doing."""
        ...

    def save_soon(self) -> bool:
        """Ask for a checkpoint out of turn; whether one can be made."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


def watch_coordinator(coordinator: str, cluster_id: str, keys: Keys | None = None) -> Watcher:
    """A `pslib.cluster.Watcher`, imported when it is needed; keys of the environment are not its business."""
    import pslib.cluster

    return pslib.cluster.Watcher(coordinator, cluster_id, keys)


class StatusPoller:
    """Asks the coordinator for its status in a thread of its own, so that a dead one delays nobody.

    Parameters
    ----------
    watch : callable
        Makes the `Watcher`; called in that thread.
    told : callable
        The status that the coordinator has told by itself at its end, or nothing yet. Answers are a lottery
        then: it ends while they are on their way, and a run would be summed up from before its last pushes
        were counted.
    """

    def __init__(self, watch: Callable[[], Watcher], told: Callable[[], dict[str, Any]]) -> None:
        self._asked: dict[str, Any] = {}
        self._given = self._asked
        self._begun = self._answered = 0  # numbers of the last question, and of the last that was answered
        self._told = told
        self._watch = watch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="status of the coordinator", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> dict[str, Any]:
        """The last status; empty until there is one."""
        return self._told() or self._asked

    def news(self) -> dict[str, Any] | None:
        """The last status if it has not been given yet."""
        latest = self.latest
        if latest is self._given:
            return None
        self._given = latest
        return latest

    def await_next(self, clock: Clock) -> None:
        """Wait a moment for a status of after an event: it may know of a checkpoint that was just saved.

        An answer that is on its way already is none: it was given before.
        """
        begun, told, end_s = self._begun, self._told(), clock.now_s() + NEWS_S
        while self._answered <= begun and self._told() is told and clock.now_s() < end_s:
            clock.sleep_s(POLL_S / 20)

    def has_lost(self, role: str, pid: int | None, host: str) -> bool:
        """Whether the coordinator has given up this process: it is stopped, out of reach or gone."""
        return self._names(f"{role}s_lost", pid, host)

    def has_left(self, role: str, pid: int | None, host: str) -> bool:
        """Whether this process has told the coordinator that it is done."""
        return self._names(f"{role}s_left", pid, host)

    def _names(self, who: str, pid: int | None, host: str) -> bool:
        """Of several machines, containers above all, each has a process of the same id."""
        named: Sequence[str] = self.latest.get(who, ())
        return any(
            where == f"pid {pid} on {host}" if host else where.startswith(f"pid {pid} on ") for where in named
        )

    def close(self) -> None:
        """Ask no more."""
        self._over.set()
        self._thread.join(timeout=1.0)

    def _poll(self) -> None:
        # A coordinator that does not answer is seen by its process, which says more than a lost reply.
        with suppress(PslibError):
            watcher = self._watch()
            try:
                while True:
                    self._begun += 1
                    with suppress(PslibError):
                        self._asked = watcher.status()
                        self._answered = self._begun
                    if self._over.wait(POLL_S):
                        return
            finally:
                watcher.close()


def lost_with(task: Task, status: dict[str, Any], log: str | None = None) -> str:
    """What a run had when a server or the coordinator died, in words; begins with a semicolon.

    Rows live on servers only: what is not in a checkpoint is gone when the run ends, unless there are logs,
    in the folder ``log``. These have more than a status, which may be from before the last pushes.
    """
    if log is not None:
        what = "journal" if task.role == "coordinator" else "update log"
        own = f"{what} {log}/{task.name.replace(' ', '-')}"
        return f"; all that it had acknowledged is in its {own}: go on with --resume"
    if not status:
        return "; nothing had been trained yet"
    rows, updates = int(status.get("rows", 0)), int(status.get("updates_applied", 0))
    saved = status.get("saved")
    kept = f"the checkpoint {shown(saved)} is the last state" if saved else "there is no checkpoint"
    servers = max(1, int(status.get("servers_configured", 1)))
    share = "all" if servers == 1 or task.role != "server" else f"about 1/{servers}"
    return f"; lost with it: {share} of {counted(rows, 'row')} and {counted(updates, 'update')}; {kept}"
