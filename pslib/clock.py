"""The only file that reads time.

Everything else takes ``now_s`` as an argument or a :class:`Clock`, so that a simulator can own time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "SystemClock", "utc_now_text", "utc_text"]


class Clock(Protocol):
    """Monotonic seconds and a way to wait."""

    def now_s(self) -> float:
        """Monotonic seconds from an arbitrary start."""
        ...

    def sleep_s(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class SystemClock:
    """The machine's monotonic clock: never jumps when somebody sets the date."""

    def now_s(self) -> float:
        """Monotonic seconds from an arbitrary start."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        time.sleep(seconds)


def utc_now_text() -> str:
    """Date and time in UTC for people to read (ISO 8601); never used in a decision."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def utc_text(seconds: float) -> str:
    """The same of some seconds since 1970, as files have them."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
