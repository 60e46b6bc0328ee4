"""Stale synchronous parallel (SSP): a trainer is at most ``s`` batches ahead of the slowest one.

The clock of a trainer counts its batches of the job that are applied everywhere. Batch number ``c`` (from 0)
may be begun when the slowest live trainer with work has applied at least ``c - s``. Source: Ho et al., NIPS
2013, "More effective distributed ML via a stale synchronous parallel parameter server".
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pslib.client.pending import Pending
from pslib.trainer.collective import HeldLease
from pslib.trainer.pipeline.pace import AsyncPace, StalenessBound
from pslib.wire.fields import Message
from pslib.wire.messages import Clocks

PAUSE_S = 0.002
PAUSE_MAX_S = 0.05
"""Interval between clock requests of a waiting trainer; a batch nearly always takes longer."""


class SspPace:
    """Pace of `AsyncPace` with a bound on the lead over the slowest trainer.

    The coordinator is asked only when the slowest known clock does not suffice. A trainer reports its own
    clock with each request, and twice in the length of the bound, since the slowest trainer never needs to
    ask. A run's only trainer does so too: others, such as a notebook, may join at any time.

    Parameters
    ----------
    permits : StalenessBound
        Number of batches that may be in flight at once, less one.
    bound : int
        Maximum lead of a trainer in batches, >= 0.
    tell : callable
        Sends this trainer's clock to the coordinator; the pending gives `Clocks`.
    led : callable
        Called with the lead over the slowest trainer at the begin of each batch.
    """

    def __init__(
        self,
        permits: StalenessBound,
        bound: int,
        tell: Callable[[int], Pending[Message]],
        led: Callable[[int], None],
    ) -> None:
        self._permits = AsyncPace(permits)
        self._bound, self._tell, self._led = bound, tell, led
        self._every = max(1, (bound + 1) // 2)
        self._lock = threading.Lock()
        self._begun = self._applied = self._slowest = 0
        self._stream: int | None = None

    def enter(self, lease: HeldLease, number: int, over: threading.Event) -> int | None:
        """Take a permit, then wait for the slowest trainer."""
        staleness = self._permits.enter(lease, number, over)
        if staleness is None:
            return None
        if lease.stream != self._stream:
            self._stream = lease.stream
            self._ask()  # after a time without work its clock has changed
        pause_s = PAUSE_S
        while self._lead() > self._bound:
            if over.is_set():
                return None
            self._ask()
            if self._lead() > self._bound:
                over.wait(pause_s)
                pause_s = min(1.5 * pause_s, PAUSE_MAX_S)
        lead = self._lead()
        with self._lock:
            self._begun += 1
        self._led(lead)
        return staleness

    def applied(self) -> None:
        """Count an applied batch; report the clock to the coordinator at intervals."""
        self._permits.applied()
        with self._lock:
            self._applied += 1
            clock, due = self._applied, self._applied % self._every == 0
        if due:
            pending = self._tell(clock)
            pending.on_done(lambda: self._note(pending))

    def _lead(self) -> int:
        with self._lock:
            return self._begun - self._slowest

    def _ask(self) -> None:
        with self._lock:
            clock = self._applied
        pending = self._tell(clock)
        pending.wait()
        self._note(pending)

    def _note(self, pending: Pending[Message]) -> None:
        """Handle the reply; an error is raised by the next wait."""
        try:
            clocks = pending.wait(0)
        except Exception:  # the endpoint has failed, and every other wait raises it
            return
        assert isinstance(clocks, Clocks)
        with self._lock:
            ahead = max(0, clocks.clock - self._applied)
            self._begun, self._applied = self._begun + ahead, self._applied + ahead
            self._slowest = clocks.slowest
