"""When a batch may be pulled: how far a trainer may run ahead."""

from __future__ import annotations

import threading
from typing import Protocol

from pslib.trainer.jobs import HeldLease
from pslib.trainer.staleness import StalenessBound

__all__ = ["AsyncPace", "Pace"]

TURN_S = 0.2


class Pace(Protocol):
    """Lets batches through, in their order, and hears when they are applied."""

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Wait until this batch may be pulled; called in the puller's thread.

        Returns
        -------
        int or None
            How many earlier batches of this trainer the pull may not see; None when ``over`` was set first.
        """
        ...

    def applied(self) -> None:
        """One more batch is applied everywhere; called in any thread, must not wait."""
        ...


class AsyncPace:
    """Permits: one more than the bound on staleness.

    A batch takes a permit before its pull and gives it back when its push is applied everywhere, so with
    staleness 0 every pull sees every earlier push.

    Parameters
    ----------
    bound : StalenessBound
        How many batches may be on their way at once, less one; it rises while the trainer warms up.
    """

    def __init__(self, bound: StalenessBound) -> None:
        self._bound = bound
        self._lock = threading.Lock()
        self._permits = threading.Semaphore(bound.now + 1)
        self._on_their_way = 0

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Take a permit."""
        while not self._permits.acquire(timeout=TURN_S):
            if over.is_set():
                return None
        with self._lock:
            self._on_their_way += 1
            return self._on_their_way - 1

    def applied(self) -> None:
        """Give the permit back, and another one when the bound has risen."""
        with self._lock:
            self._on_their_way -= 1
            risen = self._bound.batch_done()
        self._permits.release(1 + risen)
