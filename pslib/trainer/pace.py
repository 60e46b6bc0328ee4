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
    """A batch begins when no more batches are on their way than it may run ahead.

    It is on its way from its pull until its push is applied everywhere, so with staleness 0 every pull sees
    every earlier push.

    Parameters
    ----------
    bound : StalenessBound
        How many batches the next one may run ahead; it rises while the trainer warms up.
    """

    def __init__(self, bound: StalenessBound) -> None:
        self._bound = bound
        self._changed = threading.Condition()
        self._on_their_way = 0

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Wait for earlier batches; who may not go on has not begun."""
        with self._changed:
            while self._on_their_way > self._bound.now:
                if not self._changed.wait(TURN_S) and over.is_set():
                    return None
            self._bound.batch_begun()
            self._on_their_way += 1
            return self._on_their_way - 1

    def applied(self) -> None:
        """One less is on its way: who waits looks again."""
        with self._changed:
            self._on_their_way -= 1
            self._changed.notify()
