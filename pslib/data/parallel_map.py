"""Map a function over files with a thread pool, to hide object-store latency."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pslib.clock import Clock, SystemClock

__all__ = ["about_each"]

THREADS = 16
"""Threads, each waiting for one file: a footer on S3 takes two replies of 20 to 100 ms each."""

FILES_FEW = 8
"""Up to this many local files are read faster than threads start."""

REPORT_S = 5.0

log = logging.getLogger("pslib")
FoundT = TypeVar("FoundT")


def about_each(
    files: Sequence[str], look: Callable[[str], FoundT], clock: Clock | None = None
) -> Iterator[FoundT]:
    """Return ``look`` of each file, in file order; report progress if slow.

    Parameters
    ----------
    files : sequence of str
    look : callable
        Called by several threads at once.
    clock : Clock or None
    """
    if len(files) <= FILES_FEW:
        yield from map(look, files)
        return
    clock = clock or SystemClock()
    said_s = clock.now_s()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="looks into files") as pool:
        for done, found in enumerate(pool.map(look, files), 1):
            yield found
            if clock.now_s() - said_s > REPORT_S:
                said_s = clock.now_s()
                log.warning("pslib: looked into %d of %d files", done, len(files))
