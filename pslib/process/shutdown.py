"""Asked to leave: what a process does between SIGTERM and its end.

A machine that is taken away says so first: SIGTERM, and some seconds later SIGKILL. A worker notes the first
SIGTERM and finishes what it has begun (`Preemption.finishing`), or ends with a `PreemptedError` where there
is nothing to finish; a second SIGTERM ends it at once, and so does time.

Where SIGTERM comes to all processes at once, as to the steps of a Slurm job, it would end servers before the
trainers have saved. There (`TOGETHER_VARIABLE`) it is a message for the launcher, which asks each process
when it is due, by another signal (`leave_signal`).
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

__all__ = ["ASKED_LINE", "HARD_S", "TOGETHER_VARIABLE", "Preemption", "leave_signal", "preemption"]

TOGETHER_VARIABLE = "PSLIB_SIGTERM_COMES_TO_ALL"
"""Set to 1 where it does."""

ASKED_LINE = b"pslib-asked \n"
"""What a worker tells its launcher then."""

HARD_S = 5.0
"""A process that has not left so long after its time was over is ended where it stands."""


def leave_signal() -> signal.Signals:
    """The signal by which this process, and who watches over it, is asked to leave."""
    return signal.SIGUSR2 if os.environ.get(TOGETHER_VARIABLE) == "1" else signal.SIGTERM


def _tell_launcher(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # nobody reads it any more
        os.write(1, ASKED_LINE)  # a signal handler may stand in the middle of a print


class Preemption:
    """Whether this process has been asked to leave, and how much time it has for that.

    Attributes
    ----------
    drain_s : float
        Time for finishing; the cluster's `Timing.drain_s` once it is known.
    asked : bool
        Whether it has been asked; set from a signal handler, so it is a plain attribute to look at.
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
        """Take SIGTERM, or what stands in for it; in the main thread, of a process where that is ours."""
        self._number = leave_signal()
        if self._number != signal.SIGTERM:
            signal.signal(signal.SIGTERM, _tell_launcher)
        signal.signal(self._number, self._on_signal)

    def over(self) -> None:
        """The work is done and the process ends: whoever asks now is late.

        Python gives signals their defaults back while it ends, and the exit code would be that of a kill.
        """
        for number in {signal.SIGTERM, self._number}:
            signal.signal(number, signal.SIG_IGN)

    @property
    def left_s(self) -> float:
        """Seconds until what is not finished is left to others."""
        return max(0.0, self._until_s - self._clock.now_s())

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Within it, being asked is only noted: the code inside looks at `asked` every fraction of a second.

        It may raise `PreemptedError` all the same, when the time is over.
        """
        self._finishing += 1
        try:
            yield
        finally:
            self._finishing -= 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self._late:
            os._exit(PreemptedError.exit_code)  # asked twice: at once
        if not self.asked:
            self.asked = True
            self._until_s = self._clock.now_s() + self.drain_s
            threading.Thread(target=self._end_late, name="pslib-preemption", daemon=True).start()
        if self._late:
            self._late = False  # from here on another signal is somebody's second one
            raise PreemptedError(f"asked to leave (SIGTERM): not all was finished within {self.drain_s:g} s")
        if not self._finishing:
            raise PreemptedError("asked to leave (SIGTERM)")

    def _end_late(self) -> None:
        """When the time is over, end whatever the main thread waits for; a little later, the process."""
        self._clock.sleep_s(self.drain_s + 1.0)
        self._late = True
        signal.pthread_kill(threading.main_thread().ident or 0, self._number)
        self._clock.sleep_s(HARD_S - 1.0)
        os._exit(PreemptedError.exit_code)


preemption = Preemption()
"""This process's; a worker of a launcher installs it, a script of a user's may."""
