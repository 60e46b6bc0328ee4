"""Lanes of links: what goes by them, in which order, and what becomes of it when they break."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from pslib.protocol.request_records import Outgoing, ShortOutgoing
from pslib.transport import ZmqTransport, listen_short, same_host
from pslib.transport.keys import make_keys
from tests.links import LOOPBACK, poll, poll_all
from tests.waiting import PATIENCE_S, WAIT_S, wait_until

NAME_BYTES, WAITING_MAX = 9, 1000


@pytest.fixture
def opened(closing: Any) -> Any:
    """Makes links of transports of their own."""

    def one(address: str | None = None, **options: Any) -> Any:
        transport = ZmqTransport(**options)
        try:
            if address is None:
                return closing(transport.connect())
            link = closing(transport.listen(address))
            listen_short(link)
            return link
        finally:
            closing(transport)

    return one


def is_lane(peer: bytes) -> bool:
    return len(peer) == NAME_BYTES and peer[0] == 0


def met(client: Any, server: Any) -> None:
    """Connect, and wait for the greeting."""
    ask(client, server, b"are you there?", Outgoing)

    def greeted() -> bool:
        assert server.poll(0.01) == []
        assert client.receive() == []
        return server.address in client.lanes.ways

    wait_until(greeted, WAIT_S, "the greeting", pause_s=0)


def ask(client: Any, server: Any, frame: bytes = b"question", kind: Any = ShortOutgoing) -> bytes:
    """A question and its answer; returns who has asked, as the server sees it."""
    client.send_all([kind(server.address, [frame])])
    peer, frames = poll(server)
    assert frames == [frame]
    server.send_all([(peer, [b"answer to " + frame])])
    assert poll(client) == (server.address, [b"answer to " + frame])
    return peer


def test_short_messages_go_by_a_lane_that_is_greeted_and_all_others_by_zeromq(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    assert not is_lane(ask(client, server, b"first"))
    met(client, server)
    assert is_lane(ask(client, server))
    assert is_lane(ask(client, server))
    assert len(client.lanes) == len(server.lanes) == 1
    assert not is_lane(ask(client, server, kind=Outgoing))
    assert not is_lane(ask(client, server, bytes(1 << 16)))
    client.send(server.address, [b"one by itself"])
    assert not is_lane(poll(server)[0])


def test_an_answer_of_many_frames_and_a_large_one_come_by_the_lane_by_which_was_asked(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    peer = ask(client, server)
    assert is_lane(peer)
    for frames in ([b"a", b"", b"c" * 300], [memoryview(bytes(50_000))], [bytes(20_000), bytearray(20_000)]):
        server.send(peer, frames)
        assert poll(client) == (server.address, [bytes(frame) for frame in frames])
    server.send_all([(peer, [bytes(1 << 20)]), (peer, [b"what is too long is asked for again"])])
    assert poll(client)[1] == [b"what is too long is asked for again"]


KEYS = make_keys()


@pytest.mark.parametrize(
    ("listens", "connects"),
    [
        ({"keys": KEYS["server"]}, {"keys": KEYS["trainer"]}),
        ({"same_host": False}, {}),
        ({}, {"same_host": False}),
    ],
    ids=["keys", "a server that is told to go by TCP", "a client that is"],
)
def test_there_is_no_lane_where_roles_are_asked_for_or_tcp_is(
    opened: Any, listens: dict[str, Any], connects: dict[str, Any]
) -> None:
    server, client = opened(LOOPBACK, **listens), opened(**connects)
    for _ in range(3):
        assert not is_lane(ask(client, server))
    assert not server.lanes
    assert not client.lanes


def test_a_coordinator_has_no_lanes(closing: Any) -> None:
    transport = ZmqTransport()
    link, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    closing(transport)
    for _ in range(3):
        assert not is_lane(ask(client, link))
    assert not client.lanes


@pytest.mark.parametrize("greeting", [None, b"\1another greeting"], ids=["silent", "with other words"])
def test_somebody_at_the_name_of_a_lane_who_does_not_greet_is_sent_nothing(
    opened: Any, closing: Any, greeting: bytes | None
) -> None:
    transport = ZmqTransport()
    server = closing(transport.listen(LOOPBACK))
    closing(transport)
    client = opened()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taken:
        taken.bind(b"\0" + (same_host.lane_name(server.address) or b""))
        taken.listen()
        assert not is_lane(ask(client, server))
        with taken.accept()[0] as other:
            if greeting:
                other.send(greeting)
            for _ in range(3):
                assert not is_lane(ask(client, server))
            assert len(client.lanes) == (greeting is None)
            other.setblocking(False)
            if greeting is None:
                with pytest.raises(BlockingIOError):
                    other.recv(100)


@pytest.fixture
def strange(opened: Any) -> Iterator[tuple[Any, Any, Any]]:
    """A server, a client that has a lane to it, and a stranger who calls himself by that lane's name."""
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.ROUTING_ID, ask(client, server))
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(server.address)
        yield server, client, stranger


def test_who_calls_himself_by_the_name_of_a_lane_is_answered_nowhere(strange: tuple[Any, Any, Any]) -> None:
    """Else the answer to what a stranger sends by TCP would go to the owner of the lane."""
    server, client, stranger = strange
    stranger.send_multipart([b"many", b"frames"])
    for _ in range(150):
        stranger.send(b"one frame")
    came = poll_all(server, 151)
    assert not any(is_lane(other) for other, _frames in came)
    server.send_all([(other, [b"answer"]) for other, _frames in came])
    for other, frames in came[:2]:
        server.send(other, frames)
    assert is_lane(ask(client, server)), "and its owner has heard nothing else"
    assert not stranger.poll(100)


def test_many_messages_of_a_stranger_by_that_name_hold_up_nobody(strange: tuple[Any, Any, Any]) -> None:
    """They are taken a batch at a time, as all others."""
    server, _client, stranger = strange
    for _ in range(200):
        stranger.send(b"one frame")
    time.sleep(0.2)  # so that more than a batch is there, as a rule
    counts: list[int] = []
    wait_until(lambda: counts.append(len(server.receive())) or sum(counts) == 200, WAIT_S, "all of them")
    assert max(counts) <= 64


def test_a_lane_that_breaks_is_left_for_zeromq_and_taken_again_by_who_connects_again(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    peer = ask(client, server)
    server.lanes.drop(peer)
    assert not is_lane(ask(client, server))
    assert client.lanes.ways == {}
    assert not is_lane(ask(client, server))
    client._disconnect(server.address)
    assert client.peers == {}
    met(client, server)
    assert is_lane(ask(client, server))
    assert len(client.peers) == 2


def test_a_peer_that_is_left_has_its_lane_left(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    client._leave_unix(server.address)
    assert len(client.lanes) == 0
    for _ in range(2):
        assert not is_lane(ask(client, server))
    assert len(client.peers) == 1


def test_a_message_of_zeromq_comes_behind_all_that_was_sent_before_it_by_lanes(opened: Any) -> None:
    """Of whichever client: nobody knows whose lane is whose."""
    server, clients = opened(LOOPBACK), [opened() for _ in range(40)]
    for client in clients:
        met(client, server)
    for client in clients:
        client.send_all([ShortOutgoing(server.address, [b"lane"])] * 20)
    clients[0].send_all([Outgoing(server.address, [b"socket"])])
    time.sleep(0.2)
    came = [bytes(frames[0]) for _peer, frames in poll_all(server, 801)]
    assert came == [b"lane"] * 800 + [b"socket"]


def test_lanes_and_zeromq_take_turns_so_neither_waits_for_the_other(opened: Any) -> None:
    server, near, far = opened(LOOPBACK), opened(), opened()
    met(near, server)
    ask(far, server, kind=Outgoing)
    far.send_all([Outgoing(server.address, [b"socket %d" % number]) for number in range(200)])
    came: list[bool] = []

    def both_came() -> bool:  # while somebody goes on asking by a lane, more than is taken
        near.send_all([ShortOutgoing(server.address, [b"lane"])] * 100)
        near.receive()
        came.extend(is_lane(peer) for peer, _frames in server.receive())
        return sum(came) >= 500 and came.count(False) >= 64

    wait_until(both_came, WAIT_S, lambda: f"both, {sum(came)} of {len(came)} by a lane", pause_s=0)


def test_what_waits_for_room_in_a_lane_goes_before_what_goes_by_zeromq(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    sent = [b"%d" % number + bytes(4000) for number in range(200)]
    client.send_all([ShortOutgoing(server.address, [frame]) for frame in sent])
    client.send_all([Outgoing(server.address, [b"behind them"])])
    client.send_all([ShortOutgoing(server.address, [b"one more"])])
    more = [b"more %d" % number + bytes(4000) for number in range(200)]
    client.send_all([ShortOutgoing(server.address, [frame]) for frame in more])
    client.send(server.address, [b"large", bytes(1 << 17)])
    came: list[bytes] = []

    def all_came() -> bool:
        came.extend(bytes(frames[0]) for _peer, frames in server.poll(0.05))
        return len(came) >= 403

    wait_until(all_came, WAIT_S, lambda: f"403 messages, of which {len(came)} came", pause_s=0)
    assert [frame for frame in came if frame in sent or frame == b"behind them"] == [*sent, b"behind them"]
    assert [frame for frame in came if frame in more or frame == b"large"] == [*more, b"large"]
    assert client.lanes.waiting_count == 0


@pytest.mark.parametrize("looks_first", [False, True])
def test_more_than_is_taken_at_a_time_is_taken_without_another_wait(opened: Any, looks_first: bool) -> None:
    """A lane that has been read tells nobody of what was read of it and not yet taken."""
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    client.send_all([ShortOutgoing(server.address, [b"%d" % number]) for number in range(150)])
    time.sleep(0.05)
    came: list[Any] = []
    begun_s = time.monotonic()
    while len(came) < 150:
        if looks_first:
            server.ready()  # as whoever sends from another thread
        more = server.receive()
        if not more:
            server.wait(PATIENCE_S)
        came += more
    assert [frames for _peer, frames in came] == [[b"%d" % number] for number in range(150)]
    assert time.monotonic() - begun_s < PATIENCE_S / 2


def test_who_has_taken_a_part_of_what_is_here_does_not_wait_for_the_rest(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    client.send_all([ShortOutgoing(server.address, [b"%d" % number]) for number in range(8)])
    time.sleep(0.1)
    assert server.frames.receive(3)[2][1] == [b"2"]
    assert server.ready(), "of these no descriptor tells"
    server.is_empty = True
    begun_s = time.monotonic()
    server.wait(PATIENCE_S)
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    assert [frames for _peer, frames in server.receive()] == [[b"%d" % number] for number in range(3, 8)]
    assert not server.ready()


def test_few_messages_of_zeromq_are_taken_before_lanes_are_looked_at_again(opened: Any) -> None:
    server, client, other = opened(LOOPBACK), opened(), opened()
    met(client, server)
    ask(other, server, kind=Outgoing)
    other.send_all([Outgoing(server.address, [b"socket"])] * 60)
    wait_until(server.ready, WAIT_S, "the first of them")
    time.sleep(0.1)
    assert server.frames.receive(1)[0][1] == [b"socket"]
    client.send_all([ShortOutgoing(server.address, [b"lane"])])
    time.sleep(0.05)
    came = [bytes(frames[0]) for _peer, frames in poll_all(server, 60)]
    assert came.index(b"lane") < 20


def test_of_more_than_may_wait_for_room_the_rest_is_lost_and_nothing_overtakes(opened: Any) -> None:
    """As by ZeroMQ: it is asked again."""
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    client.send_all([ShortOutgoing(server.address, [b"%d " % n + bytes(1000)]) for n in range(2000)])
    came: list[Any] = []
    while more := server.poll(0.2):
        came += more
        client.wait(0.0)
        client.receive()
    numbers = [int(bytes(frames[0]).split()[0]) for _peer, frames in came]
    assert WAITING_MAX < len(numbers) < 2000
    assert numbers == list(range(len(numbers)))
    assert all(is_lane(peer) for peer, _frames in came)


def test_a_wait_ends_for_a_lane_and_for_nothing_else_that_is_not_there(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    assert server.receive() == []
    server.wait(0.05)
    assert server.idle
    threading.Timer(0.05, lambda: client.send_all([ShortOutgoing(server.address, [b"late"])])).start()
    server.wait(WAIT_S)
    assert not server.idle
    assert poll(server)[1] == [b"late"]
    server.wait(0.05)
    assert server.idle


# --- a server ---------------------------------------------------------------------------------------------

SERVER = f"""
import os
from pslib.transport import ZmqTransport, listen_short
link = listen_short(ZmqTransport().listen("{LOOPBACK}"))
print(link.address, flush=True)
while True:
    for peer, frames in link.poll(0.1):
        link.send(peer, frames)
"""


@contextmanager
def started() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def greeted(client: Any, address: str) -> None:
    """Ask, and wait for the answer and for the greeting."""
    client.send(address, [b"are you there?"])
    came: list[Any] = []

    def both_came() -> bool:
        client.wait(0.02)
        came.extend(client.receive())
        return address in client.lanes.ways and bool(came)

    wait_until(both_came, WAIT_S, "the answer and the greeting", pause_s=0)
    assert came == [(address, [b"are you there?"])]


def test_who_asks_a_server_that_is_killed_gets_no_answer_and_no_error(opened: Any) -> None:
    client = opened()
    with started() as (process, address):
        greeted(client, address)
        assert len(client.lanes) == 1
        process.kill()
        process.wait()
    for _ in range(3):
        client.send_all([ShortOutgoing(address, [b"two"])])
    client.wait(0.05)
    assert client.receive() == []
    assert len(client.lanes) == 0


def test_whoever_closes_a_lane_is_heard_though_a_child_has_its_socket_still(opened: Any) -> None:
    server, client = opened(LOOPBACK), opened()
    met(client, server)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        client.close()

        def is_heard() -> bool:
            server.poll(0.02)
            return len(server.lanes) == 0

        wait_until(is_heard, WAIT_S, "the server to hear of it", pause_s=0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
