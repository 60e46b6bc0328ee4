"""Watchdog: end a worker and all its child processes when its launcher ends.

A launcher holds the write end of each worker's standard input. When the launcher ends for any reason, that
pipe closes, also through ssh and srun. A small process, forked before the worker grows, watches the pipe and
the worker, and ends the worker's whole process group. A line ``leave`` in the pipe asks only the worker, by
SIGTERM (`pslib.process.shutdown.leave_signal`), to finish its work and leave. The watchdog is a process, not
a thread, so that it also works when the worker is stopped or in a loop that never releases the interpreter.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

from pslib.clock import SystemClock
from pslib.process.platform import process_descriptor
from pslib.process.shutdown import leave_signal

FROM_INPUT = "-"
"""Value of a worker's ``--keys`` when the key is the first line of its standard input."""

LEAVE = b"leave"
"""Line in the pipe that asks a worker to leave in order."""

GRACE_S = 4.0
"""Time between SIGTERM and SIGKILL: flushing takes less, and a launcher waits a little longer."""

CHECK_S = 0.25
"""Polling interval where there is no descriptor of a process, and while the group ends."""


def die_with_launcher() -> None:
    """Make this process lead its own group and end when the other end of its standard input closes.

    Call it first, while there is one thread and little memory. Standard input is empty afterwards. Closing
    the pipe sends SIGTERM to the group, and SIGKILL `GRACE_S` later. When this process ends by itself, the
    rest of its group is killed.
    """
    worker = os.getpid()
    if os.getpgrp() != worker:
        os.setpgid(0, 0)
    first = os.fork()
    if first == 0:
        # Forked twice, so that the worker has no unknown child: os.wait() of a user's script
        # must not wait for the watchdog.
        if os.fork() == 0:
            _watch(worker)
        os._exit(0)
    os.waitpid(first, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _watch(worker: int) -> None:
    """Body of the watching process; never returns."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        if _launcher_ended_first(worker):
            _signal_group(worker, signal.SIGTERM)
            if leave_signal() != signal.SIGTERM:
                _signal_worker(worker)
            _signal_group(worker, signal.SIGCONT)
            clock = SystemClock()
            end_s = clock.now_s() + GRACE_S
            clock.sleep_s(CHECK_S)
            _signal_worker(worker)  # the worker takes the first one as a request to leave
            while clock.now_s() < end_s and _signal_group(worker, 0):
                clock.sleep_s(CHECK_S)
        _signal_group(worker, signal.SIGKILL)
    finally:
        os._exit(0)


def _launcher_ended_first(worker: int) -> bool:
    """Wait until the pipe on standard input closes (True) or the worker ends (False)."""
    watched = [0]
    if (ended := process_descriptor(worker)) is not None:
        watched.append(ended)
    while True:
        ready, _, _ = select.select(watched, [], [], None if len(watched) > 1 else CHECK_S)
        said = os.read(0, 4096) if 0 in ready else None
        if said == b"":
            return True
        if said and LEAVE in said:
            _signal_worker(worker)
        if not _alive(worker) or any(fd != 0 for fd in ready):
            return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal_worker(worker: int) -> None:
    """Signal the worker, without its child processes."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(worker, leave_signal())


def _signal_group(group: int, number: int) -> bool:
    """Signal the group; return whether it had a process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False
