"""Both doors, ZeroMQ and memory, keep the same promises."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pslib.errors import ConfigurationError
from pslib.transport import MemoryTransport, ServerLink, Transport, ZmqTransport
from tests.support.links import LOOPBACK, come, poll, poll_all
from tests.support.waiting import WAIT_S, wait_until


@pytest.fixture(params=[MemoryTransport, ZmqTransport])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    made = request.param()
    yield made
    made.close()


def test_a_request_comes_whole_and_its_answer_finds_the_way_back(transport: Transport, closing: Any) -> None:
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    big = os.urandom(1_000_000)
    client.send(server.address, [b"header", b"", big])
    peer, frames = poll(server)
    assert frames == [b"header", b"", big]
    server.send(peer, [b"answer", memoryview(b"view")])
    assert poll(client) == (server.address, [b"answer", b"view"])


def test_signals_with_handlers_of_their_own_disturb_no_look_and_no_message(
    transport: Transport, closing: Any
) -> None:
    """A profiler's timer, or the end of a data loader's worker: what was sent must not end in an error."""
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        for number in range(3000):
            client.ready()
            if number % 10 == 0:
                client.send(server.address, [number.to_bytes(2, "big")])
        came = [int.from_bytes(frames[0], "big") for _peer, frames in poll_all(server, 300)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert came == list(range(0, 3000, 10))


def test_a_signal_whose_handler_raises_ends_a_loop_of_looks(transport: Transport, closing: Any) -> None:
    client = closing(transport.connect())

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, end)

    def look_for_ever() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # here: a slow process has it at once
        while True:
            client.ready()  # no peer sends

    try:
        with pytest.raises(KeyboardInterrupt):
            look_for_ever()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_answer_that_is_here_when_something_is_sent_is_taken_without_a_wait(
    transport: Transport, closing: Any
) -> None:
    """A send takes notice of it: else a client would wait until ZeroMQ tells of the next one."""
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    client.send(server.address, [b"ask"])
    peer, _frames = poll(server)
    assert client.receive() == []
    server.send(peer, [b"answer"])
    came: list[Any] = []

    def has_come() -> bool:
        client.send(server.address, [b"more"])
        came.extend(client.receive())
        return bool(came)

    wait_until(has_come, WAIT_S, "the answer", pause_s=0)
    assert [bytes(frame) for _, frames in came for frame in frames] == [b"answer"]


def test_answers_go_to_the_client_that_asked(transport: Transport, closing: Any) -> None:
    server = closing(transport.listen(LOOPBACK))
    clients = [closing(transport.connect()) for _ in range(3)]
    for number, client in enumerate(clients):
        client.send(server.address, [bytes([number])])
    for peer, frames in poll_all(server, 3):
        server.send(peer, [b"to", frames[0]])
    for number, client in enumerate(clients):
        assert poll(client) == (server.address, [b"to", bytes([number])])


def test_messages_of_one_client_stay_in_order(transport: Transport, closing: Any) -> None:
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    for number in range(200):
        client.send(server.address, [number.to_bytes(2, "big")])
    came = [int.from_bytes(frames[0], "big") for _peer, frames in poll_all(server, 200)]
    assert came == list(range(200))


def test_one_client_talks_to_many_servers(transport: Transport, closing: Any) -> None:
    servers = [closing(transport.listen(LOOPBACK)) for _ in range(3)]
    client = closing(transport.connect())
    assert len({server.address for server in servers}) == 3
    for server in servers:
        client.send(server.address, [server.address.encode()])
    for server in servers:
        assert poll(server)[1] == [server.address.encode()]


def test_an_address_without_a_listener_is_no_error(transport: Transport, closing: Any) -> None:
    """The message is lost, and its sender sends it again: a server may start late."""
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    client.send("tcp://127.0.0.1:9", [b"lost"])
    client.send(server.address, [b"found"])
    assert poll(server)[1] == [b"found"]


def test_an_answer_to_a_client_that_has_gone_is_no_error(transport: Transport, closing: Any) -> None:
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    client.send(server.address, [b"ask"])
    peer, _frames = poll(server)
    client.close()
    for _ in range(20):
        server.send(peer, [b"answer"])
        time.sleep(0.01)
    server.send(b"a stranger", [b"answer"])


def test_a_client_finds_a_server_that_comes_back_on_the_same_port(transport: Transport, closing: Any) -> None:
    first, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    address = first.address
    client.send(address, [b"one"])
    poll(first)
    first.close()
    second = closing(_listen_again(transport, address))
    answers: list[Any] = []

    def is_answered() -> bool:
        client.send(address, [b"two"])  # as requests do: again until it is answered
        client.wait(0.02)
        client.refusals()  # the first one may have its Unix socket still: then the second one has TCP alone
        for peer, frames in second.poll(0.1):  # one may be of a connection that the client has left since
            assert [bytes(frame) for frame in frames] == [b"two"]
            second.send(peer, [b"answer"])
        answers.extend(client.receive())
        return bool(answers)

    wait_until(is_answered, WAIT_S, "an answer of the second server", pause_s=0)
    assert {(server, *map(bytes, frames)) for server, frames in answers} == {(address, b"answer")}


def _listen_again(transport: Transport, address: str) -> ServerLink:
    """The kernel may hold the port for a moment."""
    for _ in range(100):
        try:
            return transport.listen(address)
        except ConfigurationError:
            time.sleep(0.05)
    raise AssertionError(f"{address} stays taken")


def test_a_port_in_use_is_one_line_that_names_it(transport: Transport, closing: Any) -> None:
    server = closing(transport.listen(LOOPBACK))
    with pytest.raises(ConfigurationError, match=f"can't listen on {server.address}") as caught:
        transport.listen(server.address)
    assert "\n" not in str(caught.value)
    assert "in use" in str(caught.value)


def test_a_poll_ends_after_its_timeout(transport: Transport, closing: Any) -> None:
    for link in (closing(transport.listen(LOOPBACK)), closing(transport.connect())):
        started_s = time.monotonic()
        assert come(link, 0.05) == []
        assert 0.04 <= time.monotonic() - started_s < 5


def test_a_wake_from_another_thread_ends_a_poll_at_once(transport: Transport, closing: Any) -> None:
    for link in (closing(transport.listen(LOOPBACK)), closing(transport.connect())):
        threading.Timer(0.05, link.wake).start()
        started_s = time.monotonic()
        assert come(link, WAIT_S) == []
        assert time.monotonic() - started_s < WAIT_S / 2


def test_a_wake_before_a_poll_is_not_lost_and_counts_once(transport: Transport, closing: Any) -> None:
    for link in (closing(transport.listen(LOOPBACK)), closing(transport.connect())):
        link.wake()
        link.wake()
        started_s = time.monotonic()
        come(link, WAIT_S)
        assert time.monotonic() - started_s < WAIT_S / 2
        started_s = time.monotonic()
        come(link, 0.05)
        assert time.monotonic() - started_s >= 0.04


def test_a_wake_after_close_touches_no_other_file(transport: Transport) -> None:
    """The number of a closed descriptor is given to the next file that is opened."""
    for link in (transport.listen(LOOPBACK), transport.connect()):
        link.close()
        files = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(20)]
        link.wake()
        for file in files:
            with pytest.raises(BlockingIOError):
                os.eventfd_read(file)
            os.close(file)


def test_a_link_may_be_closed_twice(transport: Transport) -> None:
    for link in (transport.listen(LOOPBACK), transport.connect()):
        link.close()
        link.close()


def _echo(server: ServerLink, over: threading.Event) -> None:
    while not over.is_set():
        for peer, frames in server.poll(0.05):
            server.send(peer, frames)


def test_an_answer_that_comes_while_another_thread_sends_does_not_wait(
    transport: Transport, closing: Any
) -> None:
    """To send may be what takes notice of a message; then the thread that sleeps beside it must be woken."""
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    lock, over, answers = threading.Lock(), threading.Event(), []

    def receive() -> None:
        while len(answers) < 300:
            with lock:
                came = client.receive()
            if not came:
                client.wait(WAIT_S)
            answers.extend(came)

    echoing = threading.Thread(target=_echo, args=(server, over), daemon=True)
    receiving = threading.Thread(target=receive, daemon=True)
    echoing.start()
    receiving.start()
    started_s = time.monotonic()
    for number in range(300):
        with lock:
            client.send(server.address, [number.to_bytes(2, "big")])
            if client.ready():
                client.wake()
    receiving.join(2 * WAIT_S)
    over.set()
    echoing.join(WAIT_S)
    assert len(answers) == 300
    assert time.monotonic() - started_s < WAIT_S


def test_transports_in_memory_never_meet() -> None:
    one, other = MemoryTransport(), MemoryTransport()
    server, client = one.listen("memory:1"), other.connect()
    client.send("memory:1", [b"x"])
    assert server.poll(0.01) == []


def test_closing_twice_does_not_close_the_successor() -> None:
    transport = MemoryTransport()
    first = transport.listen("memory:1")
    first.close()
    second = transport.listen("memory:1")
    first.close()
    client = transport.connect()
    client.send("memory:1", [b"x"])
    assert len(second.poll(1.0)) == 1
