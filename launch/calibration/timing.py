"""Time of a piece of work, as a clock and as processors count it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pslib.transport import addresses

__all__ = ["Spent", "over_tcp", "repeat"]

TICK_S = 0.01
"""In which Linux counts the processor time of another process: less than one can not be seen."""

LEAST = 5
"""Calls, however long they take."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one call: the clock's median; the means of this process's processors, and of another's."""

    wall_s: float
    own_s: float
    other_s: float


@contextmanager
def over_tcp() -> Iterator[None]:
    """Processes started meanwhile meet as those of several machines do, which are what is planned for."""
    before = os.environ.get(addresses.VARIABLE)
    os.environ[addresses.VARIABLE] = "tcp"
    try:
        yield
    finally:
        del os.environ[addresses.VARIABLE]
        if before is not None:
            os.environ[addresses.VARIABLE] = before


def repeat(work: Callable[[], object], seconds: float, other: Callable[[], float] | None = None) -> Spent:
    """Call ``work`` for about so many seconds and five times at least, once before that unmeasured.

    Parameters
    ----------
    work : callable
    seconds : float
    other : callable, optional
        Processor seconds of another process so far.
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
