"""An answer that is not here yet: whoever waits hears of it, once, whatever others who wait do."""

from __future__ import annotations

import logging
import threading

import pytest

from pslib.client.pending import Pending
from pslib.errors import UnavailableError, WaitTimeoutError
from tests.support.waiting import WAIT_S, wait_until


def waiting(pending: Pending[int], count: int) -> tuple[list[threading.Thread], list[int]]:
    """Threads that wait for it, and what they have heard."""
    heard: list[int] = []
    threads = [threading.Thread(target=lambda: heard.append(pending.wait(WAIT_S))) for _ in range(count)]
    for one in threads:
        one.start()
    wait_until(lambda: len(pending._gates) >= count, WAIT_S, f"{count} threads to wait", pause_s=0.001)
    return threads, heard


def test_the_first_outcome_counts() -> None:
    pending: Pending[int] = Pending("a pull")
    assert not pending.done
    pending.succeed(3)
    pending.fail(UnavailableError("late"))
    pending.succeed(4)
    assert pending.done
    assert [pending.wait(), pending.wait(0), pending.wait(1.5)] == [3, 3, 3]


def test_an_error_is_raised_for_everybody_who_asks() -> None:
    pending: Pending[int] = Pending("a pull")
    pending.fail(UnavailableError("it has left"))
    for _ in range(2):
        with pytest.raises(UnavailableError, match="it has left"):
            pending.wait()


def test_all_who_wait_hear_of_it() -> None:
    pending: Pending[int] = Pending("a pull")
    threads, heard = waiting(pending, 3)
    pending.succeed(5)
    for one in threads:
        one.join(WAIT_S)
    assert heard == [5, 5, 5]


@pytest.mark.parametrize("timeout_s", [0, 0.02])
def test_one_who_waits_no_longer_keeps_nobody_else_from_hearing_of_it(timeout_s: float) -> None:
    pending: Pending[int] = Pending("a pull")
    threads, heard = waiting(pending, 1)
    with pytest.raises(WaitTimeoutError, match=rf"waited {timeout_s:g} s for a pull: no answer yet"):
        pending.wait(timeout_s)
    assert len(pending._gates) == 1, "nothing is kept of those that have gone"
    pending.succeed(7)
    threads[0].join(WAIT_S)
    assert heard == [7]
    assert pending.wait(0) == 7


def test_callbacks_are_called_once_each_before_and_after_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    pending: Pending[int] = Pending("a pull")
    called: list[str] = []

    def broken() -> None:
        raise ValueError("no such thing")

    pending.on_done(lambda: called.append("first"))
    pending.on_done(broken)
    pending.on_done(lambda: called.append("second"))
    assert called == []
    with caplog.at_level(logging.ERROR, "pslib"):
        pending.succeed(1)
    assert called == ["first", "second"]
    assert ["a pull" in record.getMessage() for record in caplog.records] == [True]
    pending.on_done(lambda: called.append("third"))
    pending.fail(UnavailableError("late"))
    assert called == ["first", "second", "third"]


def test_a_callback_that_comes_with_the_answer_is_called_once_whichever_is_first() -> None:
    for _ in range(200):
        pending: Pending[int] = Pending("a pull")
        called: list[int] = []
        together = threading.Barrier(2)

        def ask(
            pending: Pending[int] = pending, called: list[int] = called, at: threading.Barrier = together
        ) -> None:
            at.wait(WAIT_S)
            pending.on_done(lambda: called.append(1))

        thread = threading.Thread(target=ask)
        thread.start()
        together.wait(WAIT_S)
        pending.succeed(1)
        thread.join(WAIT_S)
        assert called == [1]
