"""Launcher of a run as another command finds it: by its process id and the time at which it started."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.supervisor.discovery import logs_of
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError, UnavailableError
from pslib.monitor.run_folder import NOTE, ended_run, read_record, records_of_script

if TYPE_CHECKING:
    import psutil


LOOK_S = 0.1
CREATED_S = 2.0
"""Tolerance of start times: they are derived from the time of boot, which a set clock shifts."""


def this_process() -> dict[str, Any]:
    """Describe this process, the launcher, for the note of its run."""
    import psutil

    own = psutil.Process()
    return {"host": socket.gethostname(), "pid": own.pid, "created_s": own.create_time()}


@dataclass(frozen=True, slots=True)
class _Noted:
    """Launcher in the note of a run."""

    host: str
    pid: int
    created_s: float

    @property
    def is_here(self) -> bool:
        """True if it was started on this machine."""
        return self.host == socket.gethostname()

    def process(self) -> psutil.Process | None:
        """Return its process on this machine; None if it does not run any more."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.pid)
            if _runs(found) and abs(found.create_time() - self.created_s) < CREATED_S:
                return found
        return None


def stop_launcher(where: str | Path, say: Callable[[str], object]) -> int:
    """Ask the launcher of the run in a folder to save and leave, wait until it has; return its process id.

    Parameters
    ----------
    where : str or Path
    say : callable
        Called with a line before the wait.

    Raises
    ------
    ConfigurationError
        When the folder holds no run that has started, or its launcher is on another machine or of another
        user.
    UnavailableError
        When that run has no launcher any more.
    """
    import psutil

    folder = _folder_of(Path(where))
    noted = _launcher_in(folder)
    if noted is None:
        if about := records_of_script(folder):
            raise ConfigurationError(f"{about}; only that script can stop it: press Ctrl-C there, or kill it")
        raise ConfigurationError(
            f"{folder}: expected the folder of a run that has started, with its launcher in logs/{NOTE}"
        )
    if not noted.is_here:
        raise ConfigurationError(
            f"{folder}: the launcher of that run is pid {noted.pid} on {noted.host}: call pslib stop there"
        )
    try:
        launcher = None if ended_run(folder) else noted.process()
        if launcher is None:
            raise UnavailableError(_gone(folder, noted))
        with suppress(psutil.NoSuchProcess):  # it has just ended
            launcher.send_signal(signal.SIGTERM)  # psutil looks once more whether it is the same process
            say(f"pid {noted.pid}, the launcher of {folder}, saves what is trained and ends: waiting for it")
            while _runs(launcher):
                SystemClock().sleep_s(LOOK_S)
    except psutil.AccessDenied:
        raise ConfigurationError(
            f"{folder}: the launcher of that run, pid {noted.pid}, is another user's: "
            "call pslib stop as that user"
        ) from None
    return noted.pid


def gone_launcher(where: Path) -> str | None:
    """Return a line if the launcher of a run has ended on this machine; None while it runs, or if unknown."""
    import psutil

    folder = _folder_of(where)
    noted = _launcher_in(folder)
    if noted is None or not noted.is_here:
        return None
    with suppress(psutil.AccessDenied):  # there is such a process
        return None if noted.process() else _gone(folder, noted)
    return None


def _runs(launcher: psutil.Process) -> bool:
    """Return whether a process still runs; one that its parent has not waited for does not."""
    import psutil

    try:
        return launcher.is_running() and launcher.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _folder_of(where: Path) -> Path:
    return next((one for one in (where, where.parent) if (one / "logs" / NOTE).exists()), where)


def _launcher_in(folder: Path) -> _Noted | None:
    about = read_record(folder / "logs" / NOTE).get("launcher")
    with suppress(KeyError, TypeError, ValueError):  # none, or not as `this_process` describes it
        return _Noted(str(about["host"]), int(about["pid"]), float(about["created_s"])) if about else None
    return None


def _gone(folder: Path, noted: _Noted) -> str:
    is_job = (folder / "job.yaml").exists()
    command = "pslib train --resume and that folder" if is_job else "the same pslib launch and --resume"
    go_on = f"; go on with {command}" if is_job or logs_of(folder) else ""
    return f"{folder}: the launcher of that run, pid {noted.pid}, does not run any more{go_on}"
