"""Whoever waits for an answer receives: its own and others'; and every wait ends, whoever receives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pslib.client import endpoint
from pslib.client.endpoint import Endpoint
from pslib.client.pending import Pending
from pslib.clock import SystemClock
from pslib.config import Timing
from pslib.errors import UnavailableError, WaitTimeoutError
from pslib.protocol.codec import Codec
from pslib.protocol.messages import Done, Message, Stats
from pslib.transport import MemoryTransport, Transport, ZmqTransport

CODEC = Codec("waits")
LONG_S = 30.0
"""Far beyond what a test takes; nobody waits as long for an answer that is here."""
SOON_S = 5.0
TIMING = replace(Timing(), retry_s=LONG_S, retry_max_s=LONG_S, request_s=LONG_S)


class Peer:
    """Answers requests when it is told to, in a thread of its own; and an endpoint that asks it."""

    def __init__(self, transport: Transport, timing: Timing = TIMING) -> None:
        self._link = transport.listen("tcp://127.0.0.1:0")
        self._heard: list[tuple[bytes, int]] = []
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.endpoint = Endpoint(transport.connect(), CODEC, timing, SystemClock(), 1)

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                came = self._link.receive()
            with self._changed:
                self._heard += [(peer, CODEC.decode(frames).request_id) for peer, frames in came]
                self._changed.notify_all()
            if not came:
                self._link.wait(0.05)

    def answer(self, place: int = 0) -> None:
        """Answer what has come, or will; with ``place``, a later one first."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._heard) > place, SOON_S)
            peer, request_id = self._heard.pop(place)
        with self._lock:
            self._link.send(peer, CODEC.encode(request_id, Done()))
            self._link.wake()

    def ask(self) -> Pending[Message]:
        """A request on its way."""
        return self.endpoint.ask(self._link.address, Stats())

    def close(self) -> None:
        """Everything."""
        self.endpoint.close()
        self._over.set()
        self._thread.join(SOON_S)
        self._link.close()


@pytest.fixture(params=[MemoryTransport, ZmqTransport])
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Peer]]:
    transport, peers = request.param(), list[Peer]()
    monkeypatch.setattr(endpoint, "IDLE_S", LONG_S)  # no turn for no reason hides that nobody was woken

    def make(timing: Timing = TIMING) -> Peer:
        peers.append(Peer(transport, timing))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()
    transport.close()


class Waiter:
    """A thread that waits."""

    def __init__(self, pending: Pending[Message], timeout_s: float | None = None) -> None:
        self._pending, self._timeout_s, self._came = pending, timeout_s, list[Any]()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()
        time.sleep(0.05)  # nearly always it waits by now

    def _wait(self) -> None:
        try:
            self._came.append(self._pending.wait(self._timeout_s))
        except Exception as error:
            self._came.append(error)

    @property
    def outcome(self) -> Any:
        """What its wait has ended with, soon."""
        self._thread.join(SOON_S)
        assert self._came, f"it still waits after {SOON_S} s"
        return self._came[0]


def test_who_waits_receives_in_its_own_thread(opened: Any) -> None:
    peer, threads = opened(), list[int]()
    for _ in range(20):
        pending = peer.ask()
        pending.on_done(lambda: threads.append(threading.get_ident()))
        threading.Timer(0.01, peer.answer).start()
        assert pending.wait() == Done()
    assert (
        threads.count(threading.get_ident()) > 15
    )  # beside it, the endpoint's thread takes a turn now and then


def test_an_answer_comes_where_nobody_waits(opened: Any) -> None:
    peer = opened()
    for _ in range(3):
        waiter = Waiter(peer.ask())
        peer.answer()
        assert waiter.outcome == Done()
        pending, came = peer.ask(), threading.Event()
        pending.on_done(came.set)
        peer.answer()
        assert came.wait(SOON_S)
        assert pending.wait(SOON_S) == Done()


@pytest.mark.parametrize("first", [0, 1])
def test_two_that_wait_get_their_answers_in_either_order(opened: Any, first: int) -> None:
    """One receives for both; when its own has come, the other does not wait on for want of a receiver."""
    peer = opened()
    waiters = [Waiter(peer.ask()) for _ in range(2)]
    peer.answer(first)
    assert waiters[first].outcome == Done()
    peer.answer()
    assert waiters[1 - first].outcome == Done()


def test_a_wait_that_has_run_out_loses_no_answer(opened: Any) -> None:
    peer = opened()
    pending = peer.ask()
    started_s = time.monotonic()
    with pytest.raises(WaitTimeoutError, match=r"waited 0\.05 s for Stats from .*: no answer yet"):
        pending.wait(0.05)
    assert 0.04 < time.monotonic() - started_s < SOON_S
    peer.answer()
    assert pending.wait(SOON_S) == Done()


def test_a_wait_ends_with_the_endpoint(opened: Any) -> None:
    peer = opened()
    waiters = [Waiter(peer.ask()) for _ in range(2)]
    started_s = time.monotonic()
    peer.endpoint.close()
    assert time.monotonic() - started_s < SOON_S / 2
    for waiter in waiters:
        assert "has left the cluster" in str(waiter.outcome)


def test_a_wait_ends_when_all_waits_are_ended(opened: Any) -> None:
    peer = opened()
    waiter = Waiter(peer.ask())
    peer.endpoint.fail(UnavailableError("all over"))
    assert str(waiter.outcome) == "all over"


def test_a_request_is_given_up_and_sent_again_while_its_caller_receives(opened: Any) -> None:
    peer = opened(replace(TIMING, retry_s=0.1, retry_max_s=0.1, request_s=1.0))
    started_s = time.monotonic()
    waiter = Waiter(peer.ask())
    assert isinstance(waiter.outcome, WaitTimeoutError)
    assert 0.9 < time.monotonic() - started_s < SOON_S
    assert peer.endpoint.requests.resent > 3


def test_a_fault_in_who_receives_ends_all_waits(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = opened()
    waiters = [Waiter(peer.ask()) for _ in range(2)]

    def fail(*_arguments: Any) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(peer.endpoint.requests, "receive", fail)
    peer.answer()
    for waiter in waiters:
        assert "ValueError: a fault of ours" in str(waiter.outcome)


def test_a_callback_of_who_receives_may_ask(opened: Any) -> None:
    peer, asked = opened(), list[Pending[Message]]()
    pending = peer.ask()
    pending.on_done(lambda: asked.append(peer.ask()))
    waiter = Waiter(pending)
    peer.answer()
    assert waiter.outcome == Done()
    peer.answer()
    assert asked[0].wait(SOON_S) == Done()
