"""Health of this process: the last turns of its loops, and what it waits for before it can serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from pslib.clock import Clock, SystemClock

TURN_S = 60.0
"""Age of a loop's last turn from which it counts as stuck. Turns take up to 0.25 s when nothing comes. The
longest one was not measured, so the limit is what a request may last (`Timing.request_s`)."""


class Health:
    """Health of a process, read by another thread.

    Parameters
    ----------
    clock : Clock

    Attributes
    ----------
    waits_for : str
        Condition that the process waits for before it can serve; empty when it serves.
    """

    def __init__(self, clock: Clock) -> None:
        self.waits_for = "its start"
        self._clock = clock
        self._turned_s: dict[tuple[str, int], float] = {}
        self._numbers = count()

    @contextmanager
    def loop(self, name: str) -> Iterator[Callable[[], None]]:
        """Watch a loop while the block runs; it calls what this yields on each turn."""
        own = name, next(self._numbers)

        def turned() -> None:
            self._turned_s[own] = self._clock.now_s()

        turned()
        try:
            yield turned
        finally:
            del self._turned_s[own]

    def stuck(self) -> str:
        """Return the loop without a turn for `TURN_S`, and its age; empty if all turn."""
        now_s = self._clock.now_s()
        for (name, _), turned_s in list(self._turned_s.items()):
            if now_s - turned_s > TURN_S:
                return f"the {name} loop has not turned for {now_s - turned_s:.0f} s"
        return ""


health = Health(SystemClock())
"""The health of this process."""
