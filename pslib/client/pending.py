"""An answer that is not here yet, and what a peer's refusal is called here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, Generic, TypeVar

from pslib.errors import (
    AccessError,
    CheckpointError,
    ConfigurationError,
    LogFullError,
    MemoryLimitError,
    PslibError,
    RemoteProtocolError,
    UnavailableError,
    WaitTimeoutError,
)
from pslib.protocol.messages import Failure

__all__ = ["Pending", "failure_error"]

ValueT = TypeVar("ValueT")
Receive = Callable[["Pending[Any]", float | None], float | None]
"""Receives until a pending is done or a time is up; what is left of the time."""

_ERRORS: Mapping[str, type[PslibError]] = {
    "configuration": ConfigurationError,
    "unknown-table": ConfigurationError,
    "forbidden": AccessError,
    "checkpoint": CheckpointError,
    "log-full": LogFullError,
    "memory-limit": MemoryLimitError,
    "protocol": RemoteProtocolError,
}


class Pending(Generic[ValueT]):
    """An answer that is not here yet.

    Parameters
    ----------
    what : str
        Named when it does not come.
    receive : callable or None
        What a thread that waits may do for the answer to come; None: another thread does all.
    """

    def __init__(self, what: str, receive: Receive | None = None) -> None:
        self._what, self._receive = what, receive
        self._future: Future[ValueT] = Future()

    def wait(self, timeout_s: float | None = None) -> ValueT:
        """The answer.

        Parameters
        ----------
        timeout_s : float or None
            None waits until the request itself is given up (`Timing.request_s`).

        Raises
        ------
        WaitTimeoutError
            When there is no answer after ``timeout_s``; the request goes on.
        PslibError
            What the request ended with.
        """
        left_s = timeout_s
        if self._receive is not None and timeout_s != 0 and not self._future.done():
            left_s = self._receive(self, timeout_s)
        try:
            return self._future.result(left_s)
        except FutureTimeoutError:
            raise WaitTimeoutError(f"waited {timeout_s:g} s for {self._what}: no answer yet") from None

    @property
    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        return self._future.done()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the answer is here; it must be short and must not raise."""
        self._future.add_done_callback(lambda _future: callback())

    def succeed(self, value: ValueT) -> None:
        """Give the answer; the first one counts."""
        with suppress(InvalidStateError):
            self._future.set_result(value)

    def fail(self, error: PslibError) -> None:
        """Give an error instead of an answer."""
        with suppress(InvalidStateError):
            self._future.set_exception(error)


def failure_error(failure: Failure, peer: str) -> PslibError:
    """The exception for a refusal that came from ``peer``; a thread of this process needs no naming."""
    text = failure.text if peer.startswith("memory:") else f"{peer}: {failure.text}"
    return _ERRORS.get(failure.code, UnavailableError)(text)
