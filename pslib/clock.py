"""The only file that reads time.

Everything else takes ``now_s`` as an argument or a :class:`Clock`, so that a simulator can own time.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol

STALL_S = 0.5
"""Longest time between two readings that counts; a process that waits reads its clock four times a second."""


class Clock(Protocol):
    """Monotonic seconds and a way to wait."""

    def now_s(self) -> float:
        """Monotonic seconds from an arbitrary start."""
        ...

    def sleep_s(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class SystemClock:
    """The machine's monotonic clock, which does not change with the date."""

    def now_s(self) -> float:
        """Monotonic seconds from an arbitrary start."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        time.sleep(seconds)


class AwakeClock:
    """Clock that stops while this process is stopped: measures the silence of others.

    A process that was stopped (Ctrl-Z, a debugger, a paused virtual machine, a machine without a free core)
    heard nothing, though none was silent. So the time between two looks counts as `STALL_S` at most, which
    still lets every wait end. Decisions of others meanwhile go by the machine's clock.

    Parameters
    ----------
    machine : Clock
        That of the machine. It must be read far more often than every `STALL_S`, by any thread.
    """

    def __init__(self, machine: Clock) -> None:
        self._machine = machine
        self._lock = threading.Lock()
        self._looked_s = machine.now_s()
        self._stalled_s = 0.0

    def now_s(self) -> float:
        """Seconds from an arbitrary start, without stalls; never goes back."""
        with self._lock:
            now_s = self._machine.now_s()
            self._stalled_s += max(0.0, now_s - self._looked_s - STALL_S)
            self._looked_s = now_s
            return now_s - self._stalled_s

    def sleep_s(self, seconds: float) -> None:
        """Wait for ``seconds`` of the machine."""
        self._machine.sleep_s(seconds)


def utc_now_text() -> str:
    """Date and time in UTC for people to read (ISO 8601); never used in a decision."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def utc_stamp() -> str:
    """Return the current time in milliseconds, as a log line begins with it: ``2027-01-15T08:00:00.000Z``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_now_s() -> float:
    """Seconds since 1970, for files that are drawn against time; never used in a decision."""
    return datetime.now(UTC).timestamp()


def utc_text(seconds: float) -> str:
    """Date and time in UTC of seconds since 1970 (ISO 8601)."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
