"""An answer that is not here yet, as its caller holds it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Generic, TypeVar

from pslib.client.arguments import check_timeout
from pslib.errors import PslibError, WaitTimeoutError

__all__ = ["Pending"]

ValueT = TypeVar("ValueT")


class Pending(Generic[ValueT]):
    """An answer that is not here yet."""

    def __init__(self, what: str) -> None:
        self._what = what
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
        if timeout_s is not None:
            check_timeout(timeout_s)
        try:
            return self._future.result(timeout_s)
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
