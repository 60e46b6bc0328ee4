"""Requests to end a run: signals to the launcher or a worker, and repeated requests; limits of waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pslib.clock import Clock

__all__ = ["EndSignals", "WaitReporter"]


class WaitReporter:
    """Timer of named waits.

    Parameters
    ----------
    clock : Clock
    report_s : float
        Interval of lines on a continuing wait.
    say : callable
        Called with one line for the user.
    """

    def __init__(self, clock: Clock, report_s: float, say: Callable[[str], None]) -> None:
        self._clock, self._report_s, self._say = clock, report_s, say
        self._began_and_said_s: dict[str, tuple[float, float]] = {}

    def too_long(self, what: str, limit_s: float) -> bool:
        """Return whether the wait for ``what`` exceeds its limit; report it at intervals and at the end."""
        now_s = self._clock.now_s()
        begin_s, said_s = self._began_and_said_s.setdefault(what, (now_s, now_s))
        late = now_s - begin_s > limit_s
        if late or now_s - said_s > self._report_s:
            self._began_and_said_s[what] = (begin_s, now_s)
            self._say(f"waiting {now_s - begin_s:.0f} s for {what}{'; ended' if late else ''}")
        return late


CLOSES_S = 2.0
"""Interval within which signals count as one request: closing a terminal, session or job sends several."""


class EndSignals:
    """Handler of Ctrl-C, SIGTERM and a closed terminal (SIGHUP).

    Parameters
    ----------
    clock : Clock
    hurry : callable
        Called on a second request: all is to end at once.

    Attributes
    ----------
    number : int or None
        First signal that asked for the end; None: no request.
    hurried : bool
        Set by the second request, before ``hurry`` is called.
    """

    def __init__(self, clock: Clock, hurry: Callable[[], None]) -> None:
        self.number: int | None = None
        self.hurried = False
        self._clock, self._hurry = clock, hurry
        self._asked_s = 0.0
        self._told = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Handle the signals in this context; only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup: ignore SIGHUP
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self.hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def told(self) -> None:
        """Record that a worker got a signal sent to all processes of a job, which may also arrive here."""
        if self.number is None:
            self.number, self._asked_s, self._told = signal.SIGTERM, self._clock.now_s(), True

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first asks for the end, a second one hurries it."""
        now_s = self._clock.now_s()
        closes = (self.number == signal.SIGHUP or self._told) and now_s - self._asked_s < CLOSES_S
        if self.number is not None and (number == signal.SIGHUP or (closes and number == signal.SIGTERM)):
            return  # a closing terminal: one from kernel and shell each; an ending session: both kinds
        self._asked_s = now_s
        if self.number is None:
            self.number = number
        else:
            self.hurried = True
            self._hurry()
