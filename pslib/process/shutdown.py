"""Graceful shutdown: the handling of SIGTERM by workers and launchers.

A preempted machine gets SIGTERM, and some seconds later SIGKILL. On the first SIGTERM a worker finishes the
work in progress (`Preemption.finishing`), or ends with a `PreemptedError` where there is nothing to finish. A
second SIGTERM, or the end of the drain time, ends it at once.

A SIGTERM sent to all processes at once, as to the steps of a Slurm job, would end servers before the trainers
have saved. In that mode (`TOGETHER_VARIABLE`) SIGTERM is a message for the launcher only, which then stops
each process in turn with another signal (`leave_signal`).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from pslib.clock import SystemClock
from pslib.errors import PreemptedError

TOGETHER_VARIABLE = "PSLIB_SIGTERM_COMES_TO_ALL"
"""Environment variable: 1 where SIGTERM is sent to all processes at once."""

ASKED_LINE = b"pslib-asked \n"
"""Line that a worker writes to its launcher on such a SIGTERM."""

ASKED = "asked to leave (SIGTERM)"
"""Beginning of the line of a process that was asked to leave."""

ACKNOWLEDGED = f"{ASKED}: all pushes are acknowledged, and its leases go back"
"""Line of a trainer that has left a fit in order."""

HARD_S = 5.0
"""Seconds after the drain time at which a process that still runs is ended."""


def leave_signal() -> signal.Signals:
    """Return the signal that asks this process and its supervisor to leave."""
    return signal.SIGUSR2 if os.environ.get(TOGETHER_VARIABLE) == "1" else signal.SIGTERM


def _tell_launcher(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # the reader is gone
        os.write(1, ASKED_LINE)  # not print: the signal may have interrupted one


class Preemption:
    """Preemption state of this process: the request to leave, and the time left.

    Attributes
    ----------
    drain_s : float
        Time for finishing work; the cluster's `Timing.drain_s` once known.
    asked : bool
        True once the process was asked to leave. A plain attribute, since a signal handler sets it.
    """

    def __init__(self) -> None:
        self.drain_s = 20.0
        self.asked = False
        self._clock = SystemClock()
        self._until_s = 0.0
        self._finishing = 0
        self._late = False
        self._number = signal.SIGTERM

    def install(self) -> None:
        """Install the signal handler; in the main thread, of a process that pslib owns."""
        self._number = leave_signal()
        if self._number != signal.SIGTERM:
            signal.signal(signal.SIGTERM, _tell_launcher)
        signal.signal(self._number, self._on_signal)

    def over(self) -> None:
        """Mark the work as done: a later signal is ignored.

        Python restores default signal handlers during exit, and the exit code would be that of a kill.
        """
        for number in {signal.SIGTERM, self._number}:
            signal.signal(number, signal.SIG_IGN)

    @property
    def left_s(self) -> float:
        """Return the seconds left for finishing."""
        return max(0.0, self._until_s - self._clock.now_s())

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Defer the shutdown within the context: the code inside polls `asked` several times a second.

        It may still raise `PreemptedError` when the time is over.
        """
        self._finishing += 1
        try:
            yield
        finally:
            self._finishing -= 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self._late:
            os._exit(PreemptedError.exit_code)  # second signal: exit at once
        if not self.asked:
            self.asked = True
            self._until_s = self._clock.now_s() + self.drain_s
            threading.Thread(target=self._end_late, name="pslib-preemption", daemon=True).start()
        if self._late:
            self._late = False  # from here on another signal is the second one
            raise PreemptedError(f"{ASKED}: not all was finished within {self.drain_s:g} s")
        if not self._finishing:
            raise PreemptedError(ASKED)

    def _end_late(self) -> None:
        """Interrupt the main thread when the time is over; a little later, end the process."""
        self._clock.sleep_s(self.drain_s + 1.0)
        self._late = True
        signal.pthread_kill(threading.main_thread().ident or 0, self._number)
        self._clock.sleep_s(HARD_S - 1.0)
        os._exit(PreemptedError.exit_code)


preemption = Preemption()
"""This process's preemption state; launcher workers install it, a user's script may."""
