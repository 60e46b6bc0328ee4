"""Wall time and processor time of a piece of work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pslib.transport import addresses

__all__ = ["Spent", "over_tcp", "repeat"]

TICK_S = 0.01
"""Resolution of the processor time of another process on Linux."""

LEAST = 5
"""Minimum number of calls, independent of their duration."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one call: median wall time; mean processor time of this process and of another one."""

    wall_s: float
    own_s: float
    other_s: float


@contextmanager
def over_tcp() -> Iterator[None]:
    """Make processes started meanwhile connect by TCP, as on several machines, which the planner models."""
    before = os.environ.get(addresses.VARIABLE)
    os.environ[addresses.VARIABLE] = "tcp"
    try:
        yield
    finally:
        del os.environ[addresses.VARIABLE]
        if before is not None:
            os.environ[addresses.VARIABLE] = before


def repeat(work: Callable[[], object], seconds: float, other: Callable[[], float] | None = None) -> Spent:
    """Call ``work`` for about ``seconds`` and at least five times, after one unmeasured call.

    Parameters
    ----------
    work : callable
    seconds : float
    other : callable, optional
        Returns the processor seconds of another process so far.
    """
    work()
    walls: list[float] = []
    start, own = time.perf_counter(), time.process_time()
    others = other() if other else 0.0
    last = start
    while len(walls) < LEAST or last - start < seconds:
        work()
        now = time.perf_counter()
        walls.append(now - last)
        last = now
    count = len(walls)
    spent_elsewhere = max(TICK_S / 2, (other() if other else 0.0) - others)
    return Spent(sorted(walls)[count // 2], (time.process_time() - own) / count, spent_elsewhere / count)
