"""Launcher of a run as another command finds it: by its process id and the time at which it started."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.supervisor.discovery import NOTE, ended_run, read_record
from pslib.clock import SystemClock
from pslib.errors import ConfigurationError, UnavailableError

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


def stop_launcher(where: str | Path) -> int:
    """Ask the launcher of the run in a folder to save and leave, wait until it has; return its process id.

    Raises
    ------
    ConfigurationError
        When the folder holds no run that has started, or its launcher is on another machine.
    UnavailableError
        When that run has no launcher any more.
    """
    folder = _folder_of(Path(where))
    launcher = _launcher_in(folder)
    launcher.send_signal(signal.SIGTERM)  # psutil looks once more whether it is the same process
    while _runs(launcher):
        SystemClock().sleep_s(LOOK_S)
    return int(launcher.pid)


def _runs(launcher: psutil.Process) -> bool:
    """Return whether a process still runs; one that its parent has not waited for does not."""
    import psutil

    try:
        return launcher.is_running() and launcher.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _folder_of(where: Path) -> Path:
    return next((one for one in (where, where.parent) if (one / "logs" / NOTE).exists()), where)


def _launcher_in(folder: Path) -> psutil.Process:
    import psutil

    about = read_record(folder / "logs" / NOTE).get("launcher")
    if not isinstance(about, dict):
        raise ConfigurationError(f"{folder}: expected the folder of a run that has started, with logs/{NOTE}")
    if about["host"] != socket.gethostname():
        raise ConfigurationError(
            f"{folder}: the launcher of that run is pid {about['pid']} on {about['host']}: "
            "call pslib stop there"
        )
    if ended_run(folder) is None:
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(int(about["pid"]))
            if _runs(found) and abs(found.create_time() - float(about["created_s"])) < CREATED_S:
                return found
    raise UnavailableError(
        f"{folder}: the launcher of that run, pid {about['pid']}, does not run any more; "
        "go on with pslib train --resume and that folder"
    )
