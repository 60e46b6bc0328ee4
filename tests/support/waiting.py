"""Waits in tests, with their limits: a wait says what it is for, and fails when that does not come."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE", "PATIENCE_S", "WAIT_S", "wait_until"]

PATIENCE = 3.0
"""Limits say what an idle machine needs at most; guards against waiting for ever allow this much more."""
WAIT_S = 10.0
"""Limit for what is there at once when nothing is wrong: a message, a thread that goes on."""
PATIENCE_S = 60.0
"""For calls that take a time-out, only so that a test does not wait for ever."""


def wait_until(
    condition: Callable[[], object], limit_s: float, what: str | Callable[[], str], pause_s: float = 0.02
) -> None:
    """Wait for a condition; fail with ``what`` when it does not come.

    Parameters
    ----------
    condition : callable
        Asked again and again; it may do what brings it nearer.
    limit_s : float
        Limit on an idle machine; `PATIENCE` times as long is waited.
    what : str or callable
        Thing waited for; a callable is asked when it has not come.
    pause_s : float
        Between two questions; 0 where the condition itself waits, or has much to do.
    """
    end_s = time.monotonic() + PATIENCE * limit_s
    while not condition():
        if time.monotonic() >= end_s:
            raise AssertionError(f"waited {PATIENCE * limit_s:g} s for {what() if callable(what) else what}")
        time.sleep(pause_s)
