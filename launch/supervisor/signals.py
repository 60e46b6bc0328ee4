"""What asks for the end of a run: which signal, or a worker that got one, and whether it is the second."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pslib.clock import Clock

__all__ = ["EndSignals", "WaitReporter"]


class WaitReporter:
    """Counts the time of waits that have names.

    Parameters
    ----------
    clock : Clock
    report_s : float
        How often to say that a wait goes on.
    say : callable
        Called with one line for people.
    """

    def __init__(self, clock: Clock, report_s: float, say: Callable[[str], None]) -> None:
        self._clock, self._report_s, self._say = clock, report_s, say
        self._began_and_said_s: dict[str, tuple[float, float]] = {}

    def too_long(self, what: str, limit_s: float) -> bool:
        """Whether ``what`` has been waited for too long; says so every few seconds, and at the end."""
        now_s = self._clock.now_s()
        begin_s, said_s = self._began_and_said_s.setdefault(what, (now_s, now_s))
        late = now_s - begin_s > limit_s
        if late or now_s - said_s > self._report_s:
            self._began_and_said_s[what] = (begin_s, now_s)
            self._say(f"waiting {now_s - begin_s:.0f} s for {what}{'; ended' if late else ''}")
        return late


CLOSES_S = 2.0
"""Signals of one end of a terminal, a session or a job come within that."""


class EndSignals:
    """Hears Ctrl-C, SIGTERM and the end of a terminal (SIGHUP).

    Parameters
    ----------
    clock : Clock
    hurry : callable
        Called when somebody asks again: all is to end at once.

    Attributes
    ----------
    number : int or None
        The last one that asked for the end; None: nobody has.
    """

    def __init__(self, clock: Clock, hurry: Callable[[], None]) -> None:
        self.number: int | None = None
        self._clock, self._hurry = clock, hurry
        self._asked_s = 0.0
        self._told = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear them meanwhile, in the main thread; in another one nothing is heard."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup says that it shall go on
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self.hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def told(self) -> None:
        """A worker was asked to leave, by a signal that comes to all processes of a job, and here perhaps."""
        if self.number is None:
            self.number, self._asked_s, self._told = signal.SIGTERM, self._clock.now_s(), True

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Take one: the first asks for the end, another one hurries it."""
        now_s = self._clock.now_s()
        closes = (self.number == signal.SIGHUP or self._told) and now_s - self._asked_s < CLOSES_S
        if self.number is not None and (number == signal.SIGHUP or (closes and number == signal.SIGTERM)):
            return  # as a terminal closes the kernel sends one, and its shell; a session's end both kinds
        if self.number is not None:
            self._hurry()
        self.number, self._asked_s = number, now_s
