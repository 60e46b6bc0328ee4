"""Status of the coordinator, read by a launcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from launch.supervisor.run_spec import Task
from pslib.clock import Clock
from pslib.errors import PslibError
from pslib.storage import shown
from pslib.text import counted

if TYPE_CHECKING:
    from pslib.transport import Keys


POLL_S = 0.5
"""Poll interval, for a progress bar; two small messages a second."""

NEWS_S = 2.0
"""Wait for the coordinator's status after an exit; a few `POLL_S`."""


class Watcher(Protocol):
    """Result of `pslib.cluster.watch`."""

    def status(self) -> dict[str, Any]:
        """Return cumulative counters of the cluster and its current activity."""
        ...

    def save_soon(self, last: bool = False) -> bool:
        """Request an extra checkpoint, the last one of the run or not; return whether one can be made."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def watch_coordinator(coordinator: str, cluster_id: str, keys: Keys | None = None) -> Watcher:
    """Return a `pslib.cluster.Watcher`, imported lazily; keys of the environment are ignored."""
    import pslib.cluster

    return pslib.cluster.Watcher(coordinator, cluster_id, keys)


class StatusPoller:
    """Poller of the coordinator's status in a separate thread, so that a dead coordinator blocks nothing.

    Parameters
    ----------
    watch : callable
        Makes the `Watcher`; called in the separate thread.
    told : callable
        Returns the status that the coordinator sends by itself at its end, empty before. Replies may be lost
        at its end, and the summary would miss the last pushes.
    """

    def __init__(self, watch: Callable[[], Watcher], told: Callable[[], dict[str, Any]]) -> None:
        self._asked: dict[str, Any] = {}
        self._given = self._asked
        self._begun = self._answered = 0  # numbers of the last request and of the last answered one
        self._told = told
        self._watch = watch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="status of the coordinator", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> dict[str, Any]:
        """Last status; empty before the first."""
        return self._told() or self._asked

    def news(self) -> dict[str, Any] | None:
        """Return the last status unless it was returned before."""
        latest = self.latest
        if latest is self._given:
            return None
        self._given = latest
        return latest

    def await_next(self, clock: Clock) -> None:
        """Wait briefly for a status from after an event, which may include a checkpoint that was just saved.

        A reply already in transit does not count: it was sent before the event.
        """
        begun, told, end_s = self._begun, self._told(), clock.now_s() + NEWS_S
        while self._answered <= begun and self._told() is told and clock.now_s() < end_s:
            clock.sleep_s(POLL_S / 20)

    def has_lost(self, role: str, pid: int | None, host: str) -> bool:
        """Return whether the coordinator counts this process as lost: stopped, unreachable or ended."""
        return self._names(f"{role}s_lost", pid, host)

    def has_left(self, role: str, pid: int | None, host: str) -> bool:
        """Return whether this process has reported to the coordinator that it is done."""
        return self._names(f"{role}s_left", pid, host)

    def _names(self, who: str, pid: int | None, host: str) -> bool:
        """Match host and pid: several machines, containers above all, have processes with the same id."""
        named: Sequence[str] = self.latest.get(who, ())
        return any(
            where == f"pid {pid} on {host}" if host else where.startswith(f"pid {pid} on ") for where in named
        )

    def close(self) -> None:
        """Stop polling."""
        self._over.set()
        self._thread.join(timeout=1.0)

    def _poll(self) -> None:
        # An unresponsive coordinator is detected by its process exit, which says more than a lost reply.
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
    """Describe the loss after the death of a server or coordinator; begins with a semicolon.

    Rows live on servers only: rows outside a checkpoint are lost when the run ends, unless there are logs in
    the folder ``log``. Logs hold more than a status, which may precede the last pushes.
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
