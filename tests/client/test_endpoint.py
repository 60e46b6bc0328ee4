"""The thread that asks, callers that wait for room, and futures of replies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pslib.client.calls import PushName
from pslib.client.endpoint import Endpoint
from pslib.client.failover import Failover
from pslib.client.membership import MemberHandle
from pslib.client.pending import Pending
from pslib.client.session import ClientSession
from pslib.clock import SystemClock
from pslib.config import ClusterConfig
from pslib.errors import ServerLeftError, UnavailableError, WaitTimeoutError
from pslib.table.partition_map import PartitionMap
from pslib.transport import MemoryTransport, ServerLink
from pslib.wire.fields import Message
from pslib.wire.messages import Missing, Pulled, Pushed, Result, Stats, Witness
from tests.support.simulated.protocol_worlds import (
    BITS,
    CODEC,
    NO_FLOATS,
    NO_OWNERS,
    NO_UNITS,
    TIMING,
    keys_in,
)
from tests.support.waiting import WAIT_S, wait_until

PATIENT = replace(TIMING, retry_s=30.0, retry_max_s=30.0)
"""Nothing is lost here: a message that came twice would be one to which a slow test has not answered yet."""


@pytest.fixture
def server() -> Iterator[tuple[Endpoint, ServerLink]]:
    """An endpoint with a session over one server, which answers what a test says."""
    transport = MemoryTransport()
    link = transport.listen("memory:server:0")
    endpoint = Endpoint(transport.connect(), CODEC, PATIENT, SystemClock(), 1)
    endpoint.session = ClientSession(
        endpoint.requests, PartitionMap.even(BITS, 4, (link.address,)), {"t": 2}, 0
    )
    yield endpoint, link
    endpoint.close()
    link.close()


def asked(link: ServerLink) -> tuple[bytes, list[bytes]]:
    """The next message, whole."""
    ((peer, frames),) = link.poll(WAIT_S)
    return peer, [bytes(frame) for frame in frames]


def pull(endpoint: Endpoint) -> Pending[int]:
    return endpoint.call("a pull", lambda session, now_s: session.pull(now_s, {"t": keys_in(0)}))[1]


@pytest.mark.parametrize("large", [False, True], ids=["short", "in full"])
def test_all_messages_and_their_bytes_are_counted_once(
    server: tuple[Endpoint, ServerLink], large: bool
) -> None:
    endpoint, link = server
    keys = np.arange(3000, dtype=np.uint64) if large else keys_in(0)
    pending = endpoint.call("a pull", lambda session, now_s: session.pull(now_s, {"t": keys}))[1]
    peer, frames = asked(link)
    assert (endpoint.messages_sent, endpoint.bytes_sent) == (1, sum(map(len, frames)))
    rows = np.ones((keys.size, 2), np.float32)
    answer = CODEC.encode(1, Pulled({"t": rows}, NO_FLOATS, NO_UNITS, NO_OWNERS))
    assert (len(frames), len(answer)) == ((2, 2) if large else (1, 1))
    link.send(peer, answer)
    pending.wait(WAIT_S)
    assert (endpoint.messages_received, endpoint.bytes_received) == (1, sum(map(len, answer)))


@pytest.mark.parametrize("ends", ["with room", "with an error"])
def test_a_caller_waits_while_more_waits_for_credit_than_one_server_may_have(
    server: tuple[Endpoint, ServerLink], ends: str
) -> None:
    endpoint, link = server
    endpoint.requests.shares.share_bytes = 1000
    endpoint.requests.unsent_bytes = 1001
    came: list[object] = []

    def ask() -> None:
        try:
            came.append(pull(endpoint))
        except UnavailableError as error:
            came.append(error)

    caller = threading.Thread(target=ask, daemon=True)
    caller.start()
    assert link.poll(0.2) == []
    if ends == "with room":
        with endpoint.lock:
            endpoint.requests.unsent_bytes = 0
        asked(link)
    else:
        endpoint.fail(UnavailableError("gone"))
    wait_until(lambda: not caller.is_alive(), WAIT_S / 3, "the caller to go on")
    assert [type(one) for one in came] == [Pending if ends == "with room" else UnavailableError]


def test_calls_that_end_begin_others_and_none_is_forgotten(server: tuple[Endpoint, ServerLink]) -> None:
    """A callback of a call begins the next one while its answer is being taken."""
    endpoint, link = server
    last = threading.Event()

    def push(number: int) -> None:
        if number == 3:
            last.set()
            return
        gradients = {"t": (keys_in(0), np.ones((1, 2), np.float32))}
        pending = endpoint.call(
            "a push", lambda session, now_s: session.push(now_s, PushName(7, number), gradients)
        )[1]
        pending.on_done(lambda: push(number + 1))

    push(0)
    for number in range(3):
        peer, frames = asked(link)
        request_id, message = CODEC.decode(frames)
        assert message.number == number
        link.send(peer, CODEC.encode(request_id, Pushed(NO_UNITS, NO_OWNERS)))
    assert last.wait(WAIT_S)
    assert endpoint.session is not None
    wait_until(lambda: endpoint.session.acked_below(7) == 3, WAIT_S, "the floor to rise")


def test_a_call_to_a_server_that_has_left_ends_at_once_and_calls_go_on_elsewhere(
    server: tuple[Endpoint, ServerLink],
) -> None:
    endpoint, link = server
    assert endpoint.session is not None
    stats, part = endpoint.ask(link.address, Stats()), pull(endpoint)
    before = endpoint.session.map
    gone = replace(before, version=before.version + 1, addresses=("", "memory:elsewhere"))
    member = MemberHandle.__new__(MemberHandle)  # has nothing to do here
    failover = Failover(endpoint, member, ClusterConfig())
    failover.meet(replace(before, addresses=(link.address, "memory:elsewhere")), gone)
    with pytest.raises(ServerLeftError, match=f"server 0 at {link.address} has left the cluster"):
        stats.wait(WAIT_S)
    assert not part.done
    assert [what for _peer, what, _waited_s in endpoint.waits(-1.0)] == ["Pull"]


def test_a_server_that_joins_where_another_one_was_is_asked_itself(
    server: tuple[Endpoint, ServerLink],
) -> None:
    """Its port was that of a server which lives elsewhere by now, and which was asked in its place."""
    endpoint, link = server
    assert endpoint.session is not None
    first = endpoint.session.map
    member = MemberHandle.__new__(MemberHandle)  # has nothing to do here
    elsewhere = replace(first, version=2, addresses=("memory:elsewhere",))
    failover = Failover(endpoint, member, ClusterConfig())
    failover.meet(first, elsewhere)
    pull(endpoint)
    assert link.poll(0.05) == [], "it is asked elsewhere"
    failover.meet(elsewhere, elsewhere.with_address(1, link.address))
    endpoint.ask(link.address, Stats())
    assert CODEC.decode(asked(link)[1]).message == Stats()


def test_a_push_that_a_successor_acknowledges_before_it_says_what_it_knows_is_not_missing() -> None:
    """Its shards answer one by one: the one that takes the push may be the quicker one."""
    transport = MemoryTransport()
    old, new = transport.listen("memory:server:0"), transport.listen("memory:server:0")
    endpoint = Endpoint(transport.connect(), CODEC, PATIENT, SystemClock(), 1)
    before = PartitionMap.even(BITS, 4, (old.address,))
    session = endpoint.session = ClientSession(endpoint.requests, before, {"t": 2}, 0)
    told: list[Missing] = []
    member = MemberHandle.__new__(MemberHandle)
    member.rank, member.incarnation = 0, 7
    member.report = told.append  # type: ignore[method-assign, assignment]

    def push(number: int) -> Pending[int]:
        rows = {"t": (keys_in(0), np.ones((keys_in(0).size, 2), np.float32))}
        return endpoint.call("a push", lambda one, now_s: one.push(now_s, PushName(7, number), rows))[1]

    def answer(link: ServerLink, peer: bytes, frames: list[bytes], message: Message) -> None:
        link.send(peer, CODEC.encode(CODEC.decode(frames).request_id, message))

    done = Pushed(NO_UNITS, NO_OWNERS)
    try:
        first = push(1)
        answer(old, *asked(old), done)
        first.wait(WAIT_S)
        second = push(2)
        asked(old)  # and then it is killed
        after = before.with_address(0, new.address)
        Failover(endpoint, member, ClusterConfig(recovery="partial")).meet(before, after)
        session.set_map(0.0, after)
        came: list[tuple[bytes, list[bytes]]] = []
        while len(came) < 2:
            came += [(peer, [bytes(frame) for frame in frames]) for peer, frames in new.poll(WAIT_S)]
        question, again = came
        assert isinstance(CODEC.decode(question[1]).message, Witness)
        answer(new, *again, done)
        second.wait(WAIT_S)
        answer(new, *question, Result({"unknown": 1, "began_with": ["its first values"]}))
        wait_until(lambda: bool(told), WAIT_S, "the loss is told")
        assert told == [Missing(0, 7, 0, 1, 1)]
    finally:
        endpoint.close()
        old.close()
        new.close()


# --- futures ------------------------------------------------------------------------------------------------


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


def test_an_error_is_raised_for_every_caller() -> None:
    pending: Pending[int] = Pending("a pull")
    pending.fail(UnavailableError("it has left"))
    for _ in range(2):
        with pytest.raises(UnavailableError, match="it has left"):
            pending.wait()


def test_all_waiting_threads_hear_of_it() -> None:
    pending: Pending[int] = Pending("a pull")
    threads, heard = waiting(pending, 3)
    pending.succeed(5)
    for one in threads:
        one.join(WAIT_S)
    assert heard == [5, 5, 5]


@pytest.mark.parametrize("timeout_s", [0, 0.02])
def test_a_thread_that_waits_no_longer_keeps_no_other_from_hearing_of_it(timeout_s: float) -> None:
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
