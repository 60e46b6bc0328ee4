"""Futures of requests: the caller's handle of a reply that has not arrived."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pslib.client.calls import NO_VERSIONS, PullCall
from pslib.client.gradients import check_timeout
from pslib.errors import PslibError, WaitTimeoutError
from pslib.wire.dense_delta import KnownDense
from pslib.wire.staleness import Seen

log = logging.getLogger(__name__)
ValueT = TypeVar("ValueT")


class Pending(Generic[ValueT]):
    """Future of a reply.

    Thousands a second are made: a `concurrent.futures.Future` makes three locks and calls two dozen
    functions, where this takes one lock of a waiting thread. Lists do the rest: appending to one, and popping
    from it, is atomic.
    """

    __slots__ = ("_callbacks", "_gates", "_outcomes", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._outcomes: list[tuple[ValueT | None, PslibError | None]] = []
        """Outcomes; the first one counts."""
        self._callbacks: list[Callable[[], None]] = []
        self._gates: list[Lock] = []
        """Locks of waiting threads, held until there is an outcome."""

    def wait(self, timeout_s: float | None = None) -> ValueT:
        """Wait for the reply and return it.

        Parameters
        ----------
        timeout_s : float or None
            None waits until the request itself expires (`Timing.request_s`).

        Raises
        ------
        WaitTimeoutError
            When there is no reply after ``timeout_s``; the request goes on.
        PslibError
            The error of the request.
        """
        if timeout_s is not None:
            check_timeout(timeout_s)
        if not self._outcomes:
            self._sleep(timeout_s)
        value, error = self._outcomes[0]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _sleep(self, timeout_s: float | None) -> None:
        gate = Lock()
        gate.acquire()
        self._gates.append(gate)
        if self._outcomes or gate.acquire(timeout=-1 if timeout_s is None else float(timeout_s)):
            return
        with suppress(ValueError):  # released meanwhile
            self._gates.remove(gate)
        raise WaitTimeoutError(f"waited {timeout_s:g} s for {self._what}: no answer yet")

    @property
    def done(self) -> bool:
        """Return True if `wait` would return (or raise) at once."""
        return bool(self._outcomes)

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the reply arrives; it must be short and must not raise."""
        self._callbacks.append(callback)
        if self._outcomes:
            self._call_back()

    def succeed(self, value: ValueT) -> None:
        """Set the reply; the first outcome counts."""
        self._end((value, None))

    def fail(self, error: PslibError) -> None:
        """Set an error instead of a reply."""
        self._end((None, error))

    def _end(self, outcome: tuple[ValueT | None, PslibError | None]) -> None:
        self._outcomes.append(outcome)
        if self._outcomes[0] is outcome:
            for gate in list(self._gates):
                gate.release()
            self._call_back()

    def _call_back(self) -> None:
        """Run the callbacks not run yet; of two threads here, each callback goes to one."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback()
            except Exception:  # later callbacks must run all the same
                log.exception("pslib: what was to be called when %s is here has failed", self._what)


Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pulled:
    """Rows in the order of the keys, and all dense parameters (empty when not asked for).

    ``versions`` are those of the dense blocks, where some were `known`. ``seen`` has, for each server that
    answered, how many pushes it had applied: give it to the push of the gradients as ``since``, to measure
    their staleness. Arrays may be read-only: the reply of a single server is not copied. Copy what you want
    to change.
    """

    rows: Mapping[str, Rows]
    dense: Rows
    versions: NDArray[np.uint64] = field(default_factory=lambda: NO_VERSIONS)
    seen: Seen = field(default_factory=Seen)

    @property
    def known_dense(self) -> KnownDense:
        """Return the dense parameters, for the next pull."""
        return KnownDense(self.dense, self.versions)


class PendingPull:
    """Pull in flight.

    Parameters
    ----------
    take : callable
        Takes the outputs from the session, which gives them once; KeyError where the pull has failed.
    pending : Pending
        Done when the pull is.
    lock : lock
        The session's, reentrant.
    """

    def __init__(
        self, take: Callable[[], PullCall], pending: Pending[int], lock: AbstractContextManager[object]
    ) -> None:
        self._take, self._pending, self._lock = take, pending, lock
        self._taken: Pulled | None = None
        pending.on_done(self._settle)  # the session keeps no rows for a caller that never takes them

    def wait(self, timeout_s: float | None = None) -> Pulled:
        """Wait for the rows and return them. Errors as for `Pending.wait`."""
        self._pending.wait(timeout_s)
        return self._pulled()

    def _settle(self) -> None:
        try:
            self._pulled()
        except KeyError:  # the pull has failed: no rows
            return

    def _pulled(self) -> Pulled:
        with self._lock:
            if self._taken is None:
                call = self._take()
                self._taken = Pulled(call.rows, call.dense, call.versions, call.seen)
            return self._taken


PendingPush = Pending[int]
"""Push in flight; done when every server has applied its part."""
