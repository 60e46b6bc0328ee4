"""For whom a launcher waits, and how long: said every few seconds, and ended in bounded time."""

from __future__ import annotations

from collections.abc import Callable

from pslib.clock import Clock

__all__ = ["Waits"]


class Waits:
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
