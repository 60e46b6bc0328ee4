"""Nothing is left behind: a worker and all that it has started die when its launcher does.

A launcher holds the write end of each worker's standard input. When the launcher ends, however it ends, that
pipe closes, also through ssh and srun. A small process that was forked off before the worker grew watches the
pipe and the worker, and ends the worker's whole process group. A line ``leave`` in the pipe asks the worker
alone, by SIGTERM (`pslib.process.shutdown.leave_signal`), to finish what it has begun. It is a process and
not a thread, so that it also works when the worker is stopped or busy in a loop that never lets go of the
interpreter.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

from pslib.clock import SystemClock
from pslib.process.shutdown import leave_signal

__all__ = ["LEAVE", "die_with_launcher"]

LEAVE = b"leave"
"""The line in the pipe that asks a worker to leave in order."""

GRACE_S = 4.0
"""Between SIGTERM and SIGKILL: a role that flushes does it in less, and a launcher waits a little longer."""

CHECK_S = 0.25
"""How often to look where the kernel can't wake us (no pidfd before Linux 5.3), and while the group ends."""


def die_with_launcher() -> None:
    """Make this process lead its own group and end with whoever holds the other end of its standard input.

    Call it first, while there is one thread and little memory. Standard input is empty afterwards. Closing
    the pipe asks the group to end (SIGTERM) and kills it `GRACE_S` later; when this process ends by itself,
    what is left of its group is killed.
    """
    worker = os.getpid()
    if os.getpgrp() != worker:
        os.setpgid(0, 0)
    first = os.fork()
    if first == 0:
        # Forked twice, so that the worker has no child that it did not start: os.wait() of a user's script
        # must not wait for us.
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
            _signal_worker(worker)  # it takes the first one for a question whether it would leave
            while clock.now_s() < end_s and _signal_group(worker, 0):
                clock.sleep_s(CHECK_S)
        _signal_group(worker, signal.SIGKILL)
    finally:
        os._exit(0)


def _launcher_ended_first(worker: int) -> bool:
    """Wait until either the pipe on standard input is closed (True) or the worker has ended (False)."""
    watched = [0]
    with suppress(OSError, AttributeError):  # an old kernel: look now and then
        watched.append(os.pidfd_open(worker))
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
    """Ask the worker, and nobody whom it has started, to end."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(worker, leave_signal())


def _signal_group(group: int, number: int) -> bool:
    """Whether there was anybody to signal."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False
