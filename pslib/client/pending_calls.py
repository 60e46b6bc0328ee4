"""Pulls and pushes that are on their way, as their caller holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pslib.client.pending import Pending
from pslib.protocol.calls import NO_VERSIONS, PullCall
from pslib.protocol.dense_answer import KnownDense
from pslib.protocol.pushes_between import Seen

__all__ = ["PendingPull", "PendingPush", "Pulled"]

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Pulled:
    """Rows in the order of the keys, and all dense parameters (empty when not asked for).

    ``versions`` are those of the dense blocks, where some were `known`. ``seen`` has for each server that
    answered how many pushes it had applied: give it to the push of the gradients, as ``since``, and how stale
    they were is measured. Arrays may be read-only: what one server has answered alone stays where it came.
    Copy what you want to change.
    """

    rows: Mapping[str, Rows]
    dense: Rows
    versions: NDArray[np.uint64] = field(default_factory=lambda: NO_VERSIONS)
    seen: Seen = field(default_factory=Seen)

    @property
    def known_dense(self) -> KnownDense:
        """The dense parameters, for the next pull."""
        return KnownDense(self.dense, self.versions)


class PendingPull:
    """A pull on its way.

    Parameters
    ----------
    take : callable
        Takes what has come out of the session, which gives it once; KeyError where the pull has failed.
    pending : Pending
        Done when the pull is.
    lock : lock
        The session's, which one thread may take again.
    """

    def __init__(
        self, take: Callable[[], PullCall], pending: Pending[int], lock: AbstractContextManager[object]
    ) -> None:
        self._take, self._pending, self._lock = take, pending, lock
        self._taken: Pulled | None = None
        pending.on_done(self._settle)  # the session keeps no rows for somebody who never asks for them

    def wait(self, timeout_s: float | None = None) -> Pulled:
        """The rows. Errors as for `Pending.wait`."""
        self._pending.wait(timeout_s)
        return self._pulled()

    def _settle(self) -> None:
        try:
            self._pulled()
        except KeyError:  # it has failed, and there are no rows
            return

    def _pulled(self) -> Pulled:
        with self._lock:
            if self._taken is None:
                call = self._take()
                self._taken = Pulled(call.rows, call.dense, call.versions, call.seen)
            return self._taken


class PendingPush:
    """A push on its way; done when every server has applied its share."""

    def __init__(self, pending: Pending[int]) -> None:
        self._pending = pending

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the push is applied everywhere. Errors as for `Pending.wait`."""
        self._pending.wait(timeout_s)

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when it is over, well or not."""
        self._pending.on_done(callback)
