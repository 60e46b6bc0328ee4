"""Shifts the clocks of a process by ``TEST_CLOCK_SHIFT_S``: put its folder on PYTHONPATH, for tests alone.

The date also jumps: forward by an hour in the process's third second, back by two in its sixth.
"""

import os
import time

shift_s = float(os.environ.get("TEST_CLOCK_SHIFT_S", "0"))
real, monotonic = time.time, time.monotonic  # noqa: TID251
began_s = monotonic()


def shifted_time() -> float:
    """The date of this process: wrong, and it jumps."""
    age_s = monotonic() - began_s
    return real() + shift_s + (3600.0 if age_s > 3 else 0.0) - (7200.0 if age_s > 6 else 0.0)


def shifted_monotonic() -> float:
    """Another start of counting, as on another machine."""
    return monotonic() + shift_s


if shift_s:
    time.time, time.monotonic = shifted_time, shifted_monotonic  # noqa: TID251
