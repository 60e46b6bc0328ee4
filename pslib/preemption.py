"""Asked to leave: what a process does between SIGTERM and its end.

A machine that is taken away says so first: SIGTERM, and some seconds later SIGKILL. A worker notes the first
SIGTERM and finishes what it has begun (`Preemption.finishing`), or ends with a `PreemptedError` where there
is nothing to finish; a second SIGTERM ends it at once, and so does time.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pslib.clock import SystemClock
from pslib.errors import PreemptedError

__all__ = ["HARD_S", "Preemption", "preemption"]

HARD_S = 5.0
"""A process that has not left so long after its time was over is ended where it stands."""


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

    def install(self) -> None:
        """Take SIGTERM; only for a process whose main thread is ours, called in that thread."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def over(self) -> None:
        """The work is done and the process ends: whoever asks now is late.

        Python gives signals their defaults back while it ends, and the exit code would be that of a kill.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

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
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        self._clock.sleep_s(HARD_S - 1.0)
        os._exit(PreemptedError.exit_code)


preemption = Preemption()
"""This process's; a worker of a launcher installs it, a script of a user's may."""
