"""Turns of a thread to which short messages come: the socket's bytes, and what ends a turn."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

from cython_ext.short_turns import ShortAnswers, ShortServing
from cython_ext.zmq_frames import ZmqFrames
from pslib.protocol.messages import Pulled, Pushed, Stats
from pslib.protocol.request_records import ShortOutgoing
from pslib.transport import MemoryTransport, ZmqTransport, listen_short, short_answers, short_serving
from pslib.transport.zmq_link import ZmqClientLink, ZmqServerLink
from tests.links import LOOPBACK, come, poll_all
from tests.protocol_worlds import CODEC, NO_BLOCKS, OneServer, make_client, push_ones, setup_of
from tests.test_short import KEYS, OWNED, PULL, PUSH, SHORT
from tests.test_zmq_frames import Library
from tests.waiting import WAIT_S, wait_until


class Thread:
    """What a server's turns see of a shard's thread."""

    def __init__(self) -> None:
        self.server = OneServer(units=OWNED)
        self.server.ask(setup_of(t=1))
        self.shard, self.turn, self.given, self.settled = self.server.shards[0], threading.Lock(), 0, 0


class Meeting:
    """A client's link, and a server's with its turns."""

    def __init__(self, transport: ZmqTransport) -> None:
        self.server: ZmqServerLink = transport.listen(LOOPBACK)
        self.client: ZmqClientLink = transport.connect()
        self.thread, self.lock = Thread(), threading.Lock()
        assert SHORT is not None
        serving = short_serving(self.server, self.lock, SHORT, self.thread, self.failed)
        assert serving is not None
        self.serving: ShortServing = serving

    def failed(self, frames: list[Any], error: Exception) -> str:
        """What becomes of a request that has ended half-way."""
        assert self.thread.turn.locked(), "nobody else touches the shard before it is known as broken"
        return f"{CODEC.decode(frames).request_id}: {type(error).__name__}"

    def send(self, *requests: Any) -> None:
        for number, request in enumerate(requests, 1):
            self.client.send(self.server.address, CODEC.encode(number, request))

    def serve(self, patience_s: float = WAIT_S, until_s: float = inf, held_until_s: float = inf) -> list[Any]:
        return self.serving.serve(patience_s, until_s, held_until_s)

    def answers(self, count: int) -> list[Any]:
        return [CODEC.decode(frames) for _peer, frames in poll_all(self.client, count)]

    def served(self, count: int) -> list[list[bytes]]:
        """So many answers, of as many turns as that takes; nothing is given back."""
        came: list[list[bytes]] = []

        def all_came() -> bool:
            assert self.serve(patience_s=0.02) == []
            came.extend([bytes(frame) for frame in frames] for _peer, frames in come(self.client, 0.02))
            return len(came) >= count

        wait_until(all_came, WAIT_S, lambda: f"{count} answers, of which {len(came)} came", pause_s=0)
        assert len(came) == count
        return came

    def arrived(self) -> None:
        """Return when something is at the server."""
        wait_until(self.server.ready, WAIT_S, "a message at the server", pause_s=0.001)
        time.sleep(0.05)  # and what was sent with it


@pytest.fixture
def two() -> Iterator[Meeting]:
    transport = ZmqTransport()
    meeting = Meeting(transport)
    yield meeting
    for link in (meeting.client, meeting.server):
        link.close()
    transport.close()


def test_short_requests_are_answered_until_another_comes_which_is_given_back(two: Meeting) -> None:
    two.send(PUSH, PULL, Stats(), PULL)
    ((_peer, frames),) = two.serve()
    assert CODEC.decode(frames) == (3, Stats())
    assert two.serving.failure is None
    pushed, pulled = two.answers(2)
    assert (pushed.request_id, type(pushed.message)) == (1, Pushed)
    assert (pulled.request_id, type(pulled.message)) == (2, Pulled)
    assert pulled.message.rows["t"].ravel().tolist() == [1.0] * KEYS.size
    (last,) = two.served(1)
    assert CODEC.decode(last).request_id == 4


def test_the_bytes_of_answers_are_those_of_a_server_without_such_turns(two: Meeting) -> None:
    other = Thread().server
    for number, request in enumerate((PUSH, PUSH, PULL, push_ones(3, KEYS[:1])), 1):
        frames = [bytes(one) for one in CODEC.encode(number, request)]
        two.client.send(two.server.address, frames)
        (came,) = two.served(1)
        assert came == other.answer_to(frames)


def test_a_turn_ends_when_its_time_is_over_though_nothing_comes(two: Meeting) -> None:
    began_s = time.monotonic()
    assert two.serve(patience_s=0.05) == []
    assert 0.04 < time.monotonic() - began_s < WAIT_S


def test_a_turn_ends_at_its_time_though_short_requests_go_on_coming(two: Meeting) -> None:
    two.send(*[PULL] * 200)
    two.arrived()
    assert two.serve(until_s=0.0) == []
    wait_until(two.server.ready, WAIT_S, "the rest: of 200 requests a batch is answered", pause_s=0.001)
    two.served(200)


def test_whoever_wakes_the_thread_ends_its_turn_after_what_has_come(two: Meeting) -> None:
    two.send(PULL)
    two.arrived()
    two.server.wake()
    began_s = time.monotonic()
    assert two.serve() == []
    assert time.monotonic() - began_s < WAIT_S / 2
    assert len(two.answers(1)) == 1
    began_s = time.monotonic()
    two.serve(patience_s=0.1)
    assert time.monotonic() - began_s > 0.09, "it is woken once"


def test_who_goes_on_without_turns_finds_what_has_come_after_them(two: Meeting) -> None:
    assert not two.server.ready()
    assert two.serve(patience_s=0.01) == []
    two.send(PULL)
    time.sleep(0.2)
    came: list[Any] = []
    wait_until(lambda: came.extend(two.server.receive()) or came, WAIT_S, "it")
    ((_peer, frames),) = came
    assert CODEC.decode(frames).request_id == 1


def test_an_answer_to_a_client_that_has_gone_is_no_error(two: Meeting) -> None:
    two.send(PUSH)
    two.arrived()
    two.client.close()
    time.sleep(0.3)
    assert two.serve(patience_s=0.1) == []
    assert two.thread.shard.counters.rows_pushed == KEYS.size


def test_what_zeromq_says_is_wrong_with_a_socket_is_raised() -> None:
    transport = ZmqTransport()
    server, client = transport.listen(LOOPBACK), transport.connect()
    library = Library(zmq_send=lambda: errno.EFAULT)
    server.frames = ZmqFrames(server._socket.underlying, library.functions, 1 << 16)
    assert SHORT is not None
    serving = short_serving(server, threading.Lock(), SHORT, Thread(), lambda _frames, _error: None)
    assert serving is not None
    client.send(server.address, CODEC.encode(1, PULL))
    with pytest.raises(OSError, match="Bad address"):
        serving.serve(WAIT_S, inf, inf)
    for link in (client, server):
        link.close()
    transport.close()


def test_nothing_is_answered_from_when_another_may_have_the_place(two: Meeting) -> None:
    two.send(PUSH)
    assert len(two.serve(held_until_s=time.monotonic())) == 1
    assert not two.thread.shard.counters.rows_pushed
    assert come(two.client, 0.05) == []


@pytest.mark.parametrize("why", ["work waits", "the shard is taken", "the shard is broken"])
def test_a_request_is_given_back_while_it_must_not_be_served_here(two: Meeting, why: str) -> None:
    if why == "work waits":
        two.thread.given = 1
    elif why == "the shard is taken":
        two.thread.turn.acquire()
    else:
        two.thread.shard.broken = "half-way"
    two.send(PULL)
    ((_peer, frames),) = two.serve()
    assert CODEC.decode(frames).request_id == 1
    assert two.thread.turn.locked() == (why == "the shard is taken")


def test_a_fault_half_way_through_a_push_is_told_with_the_push(
    two: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two.thread.shard.counters, "pushes_applied", None)
    two.send(PUSH, PULL)
    ((_peer, frames),) = two.serve()
    assert CODEC.decode(frames).request_id == 1
    assert two.serving.failure == "1: TypeError"
    assert not two.thread.turn.locked()
    assert not two.lock.locked()
    assert two.serve(0.1) == []
    assert two.serving.failure is None, "that of the turn before is forgotten"


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_link_that_another_thread_closes_meanwhile_is_not_touched_any_more(two: Meeting, side: str) -> None:
    """And its thread ends, as it would with pyzmq: it must not ask for ever."""
    link: Any = getattr(two, side)
    turn: Callable[[], Any] = two.serve if side == "server" else Asking(two).turn
    said: list[str] = []

    def work() -> None:
        try:
            turn()
        except OSError as error:
            said.append(error.strerror)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.05)
    with two.lock:
        link.leave_frames()
        link.wake()
    thread.join(WAIT_S)
    assert said == ["Socket operation on non-socket"]


def test_encrypted_links_and_those_without_the_library_have_no_such_turns(two: Meeting) -> None:
    two.server.leave_frames()
    two.client.leave_frames()
    assert SHORT is not None
    calls = CODEC.short_calls({}, {}, {})
    memory = MemoryTransport()
    for server in (two.server, memory.listen("memory:test:0")):
        assert short_serving(server, two.lock, SHORT, two.thread, two.failed) is None
    for client in (two.client, memory.connect()):
        assert short_answers(client, two.lock, calls) is None


class Asking:
    """A client whose answers come by turns."""

    def __init__(self, two: Meeting) -> None:
        self.session = make_client(1, {"t": 1})
        self.link = two.client
        self.link.send(two.server.address, [b"?"])
        ((self.peer, _),) = poll_all(two.server, 1)
        self.server = two.server
        answers = short_answers(self.link, two.lock, self.session.requests.short)
        assert answers is not None
        self.answers: ShortAnswers = answers

    def turn(self, now_s: float = 0.0, patience_s: float = WAIT_S) -> list[Any]:
        return self.answers.receive(now_s, patience_s)

    def pull(self) -> int:
        """Begin one; its request_id."""
        self.session.pull(0.0, {"t": KEYS})
        ((_peer, frames),) = self.session.requests.outbox
        self.session.requests.outbox.clear()
        return CODEC.decode(list(frames)).request_id

    def answer(self, request_id: int) -> int:
        """Send the answer; how long it is."""
        nothing = np.empty(0, np.float32), NO_BLOCKS, np.empty(0, np.uint16)
        message = Pulled({"t": np.ones((KEYS.size, 1), np.float32)}, *nothing, pushes_before=1)
        frames = CODEC.encode(request_id, message)
        self.server.send(self.peer, frames)
        return sum(map(len, frames))


def test_a_turn_of_a_client_ends_when_a_call_is_over(two: Meeting) -> None:
    asking = Asking(two)
    first, second = asking.pull(), asking.pull()
    size = asking.answer(first)
    began_s = time.monotonic()
    assert asking.turn(0.0, WAIT_S) == []
    assert time.monotonic() - began_s < WAIT_S / 2
    assert len(asking.session.requests.short or ()) == 1
    asking.session.settle_short()
    assert [one.error for one in asking.session.completed] == [None]
    asking.answer(second)
    assert asking.turn(0.0, WAIT_S) == []
    assert (asking.answers.message_count, asking.answers.byte_count) == (2, 2 * size)


def test_what_answers_no_short_call_is_given_back_with_its_peer(two: Meeting) -> None:
    asking = Asking(two)
    number = asking.pull()
    size = asking.answer(number + 5)
    asking.server.send(asking.peer, [b"a", b"bc"])
    came: list[Any] = []
    began_s = time.monotonic()
    while len(came) < 2:
        came += asking.turn(0.0, WAIT_S)
    assert time.monotonic() - began_s < WAIT_S / 2
    assert [peer for peer, _frames in came] == [two.server.address] * 2
    assert list(came[1][1]) == [b"a", b"bc"]
    assert asking.answers.byte_count == size + 3
    assert not asking.link.silent


def test_a_turn_of_a_client_ends_when_it_is_woken_or_its_time_is_over(two: Meeting) -> None:
    asking = Asking(two)
    began_s = time.monotonic()
    assert asking.turn(0.0, 0.05) == []
    assert asking.link.idle
    two.client.wake()
    assert asking.turn(0.0, WAIT_S) == []
    assert not asking.link.idle
    assert time.monotonic() - began_s < WAIT_S / 2


def test_an_answer_counts_for_no_longer_than_somebody_would_have_waited(two: Meeting) -> None:
    """A process that is stopped meanwhile has not waited: else its next requests would be given as long."""
    asking = Asking(two)
    number = asking.pull()

    def answer() -> None:
        time.sleep(0.1)
        asking.answer(number)

    thread = threading.Thread(target=answer)
    with two.lock:  # as if it were stopped: the answer is there long before this turn looks
        turn = threading.Thread(target=asking.turn, args=(1.0, 0.01))
        turn.start()
        thread.start()
        thread.join(WAIT_S)
        time.sleep(0.3)
    turn.join(WAIT_S)
    (took_s,) = asking.session.requests._took_s.values()
    assert took_s == pytest.approx(1.0, abs=0.05)


class Interrupted:
    """A lock that lets something happen before somebody gets it for the so many-eth time."""

    def __init__(self, number: int, happens: Callable[[], None]) -> None:
        self.left, self.happens = number, happens

    def __enter__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.happens()

    def __exit__(self, *_: object) -> None:
        return


def test_what_a_client_sends_by_zeromq_is_taken_behind_what_it_sent_by_a_lane_before(two: Meeting) -> None:
    """Also when the last wait knows of other lanes alone, and of these something is left."""
    transport = ZmqTransport()
    clients: list[ZmqClientLink] = [transport.connect() for _ in range(11)]
    listen_short(two.server)

    def greeted(client: ZmqClientLink) -> bool:
        two.serve(0.01)
        client.receive()
        return two.server.address in client.lanes.ways

    for client in clients:
        client.send(two.server.address, CODEC.encode(1, PULL))
        wait_until(partial(greeted, client), WAIT_S, "the greeting", pause_s=0)
    last = clients.pop()

    def by_lane(client: ZmqClientLink, *requests: Any) -> None:
        client.send_all([ShortOutgoing(two.server.address, CODEC.encode(9, one)) for one in requests])

    def happens() -> None:
        by_lane(last, PUSH)
        last.send(two.server.address, CODEC.encode(10, Stats()))
        time.sleep(0.2)

    for client in clients:
        by_lane(client, *[PULL] * 9)  # eight are taken at a time
    assert SHORT is not None
    lock = Interrupted(3, happens)  # after one full batch, and a wait that tells of the last of each
    serving = short_serving(two.server, lock, SHORT, two.thread, two.failed)
    assert serving is not None
    ((_peer, frames),) = serving.serve(WAIT_S, inf, inf)
    assert CODEC.decode(frames).message == Stats()
    assert lock.left <= 0
    assert two.thread.server.ask(PULL).rows["t"].ravel().tolist() == [1.0] * KEYS.size, "the push came first"
    for client in [*clients, last]:
        client.close()
    transport.close()
