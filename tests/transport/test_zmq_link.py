"""ZeroMQ beyond what both doors promise: addresses, frames, and peers that are rude or gone."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zmq

from pslib.config import Limits
from pslib.errors import ConfigurationError
from pslib.transport import ZmqTransport, addresses, router, zmq_link
from pslib.transport.addresses import is_loopback, wants_ipv6
from tests.support.links import LOOPBACK, come, poll, poll_all
from tests.support.machine.ipv6 import has_ipv6
from tests.support.waiting import WAIT_S, wait_until


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://192.168.1.5:0", "tcp://host:0"])
def test_an_address_open_to_the_network_must_be_asked_for_by_name(closing: Any, address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"there are no keys; .* say --insecure-network"):
        closing(ZmqTransport()).listen(address)


def test_and_is_given_then(closing: Any) -> None:
    link = closing(closing(ZmqTransport(insecure_network=True)).listen("tcp://0.0.0.0:0"))
    assert link.address.startswith("tcp://0.0.0.0:")


@has_ipv6
def test_links_speak_ipv6_by_tcp_and_by_a_unix_socket(closing: Any) -> None:
    for same_host in (False, True):
        transport = closing(ZmqTransport(same_host=same_host))
        server, client = closing(transport.listen("tcp://[::1]:0")), closing(transport.connect())
        assert server.address.startswith("tcp://[::1]:")
        client.send(server.address, [b"hello"])
        peer, frames = poll(server)
        server.send(peer, [bytes(frames[0])])
        _peer, answer = poll(client)
        assert [bytes(one) for one in answer] == [b"hello"]


@pytest.mark.parametrize(
    ("address", "has_ipv4", "expected"),
    [
        ("tcp://[fd00::7]:5", True, True),
        ("tcp://10.0.0.1:5", False, False),
        ("tcp://clicks-coordinator-0.clicks:7077", True, False),
        ("tcp://clicks-coordinator-0.clicks:7077", False, True),
        ("tcp://localhost:5", False, False),
        ("ipc://@pslib-[::1]:5", False, False),
    ],
)
def test_a_name_is_looked_up_by_ipv6_where_there_is_nothing_else(
    monkeypatch: pytest.MonkeyPatch, address: str, has_ipv4: bool, expected: bool
) -> None:
    monkeypatch.setattr(addresses, "_has_ipv4", lambda: has_ipv4)
    assert wants_ipv6(address) is expected


@pytest.mark.root
@pytest.mark.parametrize(("routes", "expected"), [(":", True), ("ip route add default dev lo", False)])
def test_a_machine_has_ipv4_if_a_route_leads_to_others(routes: str, expected: bool) -> None:
    program = "from pslib.transport.addresses import wants_ipv6; print(wants_ipv6('tcp://node-a:5'))"
    inside = f'ip link set lo up && {routes} && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", inside, sys.executable, program],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    if done.stderr.startswith("unshare"):
        pytest.skip(f"needs a network namespace: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_an_address_that_is_none_is_one_line(closing: Any) -> None:
    client = closing(closing(ZmqTransport()).connect())
    with pytest.raises(ConfigurationError, match="expected tcp://HOST:PORT"):
        client.send("nonsense", [b"x"])


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://127.0.0.1:5", True),
        ("tcp://127.8.9.1:5", True),
        ("tcp://[::1]:5", True),
        ("tcp://localhost:5", True),
        ("ipc:///tmp/a", True),
        ("inproc://a", True),
        ("tcp://0.0.0.0:5", False),
        ("tcp://*:5", False),
        ("tcp://[::]:5", False),
        ("tcp://eth0:5", False),
        ("udp://127.0.0.1:5", False),
    ],
)
def test_what_counts_as_this_machine(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected


def test_what_is_queued_for_a_peer_that_is_no_more_takes_no_memory(closing: Any) -> None:
    """A trainer kept all large messages that were on their way to each server that had died, for good."""
    transport = closing(ZmqTransport(same_host=False))
    server, client = transport.listen(LOOPBACK), transport.connect()
    gone = server.address
    client.send(gone, [b"hello"])
    come(server, WAIT_S)
    server.close()

    def is_kept(array: Callable[[], object]) -> bool:
        client.ready()
        client.wait(0.01)
        return array() is not None

    def send_one() -> Callable[[], object]:
        array = np.ones(1 << 18)
        client.send(gone, [b"header", array.view(np.uint8).data])
        return weakref.ref(array)

    def is_queued() -> bool:  # until the link has noticed the end, it may still send: those are gone at once
        queued.append(send_one())
        return all(is_kept(queued[-1]) for _ in range(10))

    queued: list[Callable[[], object]] = []
    wait_until(is_queued, WAIT_S, "a message to be queued")
    client.forget(gone)
    client.forget("tcp://127.0.0.1:1")
    wait_until(lambda: not any(is_kept(array) for array in queued), WAIT_S, "the messages to be dropped")
    again = transport.listen(gone)
    client.send(gone, [b"somebody else is there"])
    _peer, frames = poll(again)
    assert [bytes(frame) for frame in frames] == [b"somebody else is there"]
    again.close()
    client.close()


def test_a_large_frame_keeps_its_memory_when_its_link_is_closed(closing: Any) -> None:
    transport = closing(ZmqTransport())
    server, client, sent = transport.listen(LOOPBACK), transport.connect(), os.urandom(200_000)
    client.send(server.address, [b"header", sent, b"last"])
    came: list[Any] = []
    while not came:  # a connection that comes about ends a wait too
        came = come(server, WAIT_S)
    ((_peer, (header, large, last)),) = came
    array = np.frombuffer(large, np.uint8)
    assert array.flags.writeable, "as pyzmq gives it"
    del large
    server.close()
    client.close()
    assert (header, array.tobytes(), last) == (b"header", sent, b"last")


@pytest.mark.parametrize("number", [0, errno.EAGAIN, errno.EHOSTUNREACH, errno.ENOTSOCK])
def test_a_peer_that_takes_nothing_now_is_no_error_and_all_else_is(
    closing: Any, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: object, **_options: object) -> None:
        if number:
            raise zmq.ZMQError(number)

    server = closing(ZmqTransport()).listen(LOOPBACK)
    monkeypatch.setattr(server._socket, "send", send)
    if number == errno.ENOTSOCK:
        with pytest.raises(zmq.ZMQError, match="socket"):
            server.send(b"peer", [b"x"])
    else:
        server.send(b"peer", [b"x"])
    server.close()


def test_all_messages_go_in_their_order_whatever_they_are_of(closing: Any) -> None:
    """Small ones are copied, large ones are not, and connections are made as they are needed."""
    transport = closing(ZmqTransport())
    servers, client = [transport.listen(LOOPBACK) for _ in range(2)], transport.connect()
    large = os.urandom(200_000)
    kinds: list[list[Any]] = [[b"a"], [large], [b"b", b"c"], [b"d"], [memoryview(b"e")], [b"f"]]
    plain = [list(map(bytes, kind)) for kind in kinds]
    client.send_all([(server.address, kind) for kind in kinds for server in servers])
    for server in servers:
        came: list[Any] = []
        while len(came) < len(kinds):
            came += come(server, WAIT_S)
        assert [list(map(bytes, frames)) for _peer, frames in came] == plain
        server.send_all([(came[0][0], kind) for kind in kinds])
    back: dict[str, list[list[bytes]]] = {server.address: [] for server in servers}
    while sum(map(len, back.values())) < 2 * len(kinds):
        client.wait(WAIT_S)
        for peer, frames in client.receive():
            back[peer].append(list(map(bytes, frames)))
    assert list(back.values()) == [plain, plain]
    client.send_all([])
    for link in (client, *servers):
        link.close()


def test_a_peer_that_is_sent_a_small_message_is_silent_until_it_answers(closing: Any) -> None:
    """For a peer that does not answer, `refusals` finds out why."""
    transport = closing(ZmqTransport())
    server, client = transport.listen(LOOPBACK), transport.connect()
    for _turn in range(2):  # connected by the first, known to the second
        client.send_all([(server.address, [b"ask"])])
        assert client.silent == {server.address}
        ((peer, _frames),) = poll_all(server, 1)
        server.send_all([(peer, [b"answer"])])
        poll_all(client, 1)
        assert client.silent == set()
    client.close()
    server.close()


def test_a_reply_to_an_unknown_peer_is_no_error(closing: Any) -> None:
    server = closing(closing(ZmqTransport()).listen(LOOPBACK))
    server.send_all([(b"nobody", [b"x"]), (b"nobody", [b"x", b"y"])])


@pytest.mark.parametrize("with_transport", [False, True])
def test_a_closed_link_raises(with_transport: bool) -> None:
    transport = ZmqTransport()
    server, client = transport.listen(LOOPBACK), transport.connect()
    for link in (server, client):
        if not with_transport:
            link.close()
    transport.close()
    for use in (
        server.receive,
        client.receive,
        lambda: server.send(b"peer", [b"x"]),
        lambda: server.send_all([(b"peer", [b"x"])]),
    ):
        with pytest.raises(zmq.ZMQError):
            use()


def test_a_frame_beyond_the_limit_is_not_taken_in(closing: Any) -> None:
    """ZeroMQ itself drops the connection before memory is taken; others are served on."""
    transport = closing(ZmqTransport(Limits(frame_bytes_max=1000)))
    server, rude, polite = transport.listen(LOOPBACK), transport.connect(), transport.connect()
    rude.send(server.address, [b"x" * 2000])
    polite.send(server.address, [b"hello"])
    assert poll(server)[1] == [b"hello"]
    assert server.poll(0.2) == []
    for link in (server, rude, polite):
        link.close()


def test_a_server_lets_go_of_a_client_that_was_busy_and_says_nothing_any_more(
    closing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data after a client's last PING puts off what ZeroMQ does for want of another: servers ask, too."""
    monkeypatch.setattr(zmq_link, "SERVER_HEARTBEAT_MS", 100)
    patience = 2000, "no longer than this thread may stand still before the client has said a word"
    monkeypatch.setitem(router.OPTIONS, zmq.HEARTBEAT_TIMEOUT, patience)
    server = closing(ZmqTransport()).listen(LOOPBACK)
    try:
        with _raw_client(server.address) as client:
            client.sendall(_command(b"PING", (1).to_bytes(2, "big")) + bytes([0, 4]) + b"busy")
            assert poll(server) == (b"raw", [b"busy"])
            while client.recv(4096):  # until it hangs up; TimeoutError when it never does
                pass
    finally:
        server.close()


def _raw_client(address: str) -> socket.socket:
    """A connection of ZMTP 3.1 (https://rfc.zeromq.org/spec/37) after its handshake; it answers nothing."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    client = socket.create_connection((host, int(port)), WAIT_S)
    client.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f\3\1" + b"NULL".ljust(20, b"\0") + bytes(32))
    about = {b"Socket-Type": b"DEALER", b"Identity": b"raw"}
    pairs = (bytes([len(k)]) + k + len(v).to_bytes(4, "big") + v for k, v in about.items())
    client.sendall(_command(b"READY", b"".join(pairs)))
    heard = b""
    while b"READY" not in heard:  # after its greeting
        heard += client.recv(4096) or pytest.fail(f"{address} hung up after {heard!r}")
    return client


def _command(name: bytes, data: bytes) -> bytes:
    body = bytes([len(name)]) + name + data
    return bytes([4, len(body)]) + body


class SignalAt:
    """A socket during whose so-many-th send or receive a signal comes."""

    def __init__(self, real: Any, at: int) -> None:
        self._real, self._left = real, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _done(self, result: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGALRM)
        return result

    def send(self, *arguments: Any, **keywords: Any) -> Any:
        return self._done(self._real.send(*arguments, **keywords))

    def recv(self, *arguments: Any, **keywords: Any) -> Any:
        return self._done(self._real.recv(*arguments, **keywords))


@pytest.fixture
def alarm_raises() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, end)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm_raises")
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_handler_that_raises_while_a_client_sends_leaves_no_half_of_a_message(
    at: int, closing: Any
) -> None:
    """Ctrl-C in a notebook: the next message would begin behind half of this one."""
    transport = closing(ZmqTransport())
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    client.send(server.address, [b"first"])
    poll(server)
    client._socket, real = SignalAt(client._socket, at), client._socket
    with pytest.raises(KeyboardInterrupt):
        client.send(server.address, [b"header", b"body", b"end"])
    client._socket = real
    client.send(server.address, [b"last"])
    assert [frames for _peer, frames in poll_all(server, 2)] == [[b"header", b"body", b"end"], [b"last"]]


@pytest.mark.usefixtures("alarm_raises")
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_handler_that_raises_while_a_client_receives_takes_whole_messages(at: int, closing: Any) -> None:
    transport = closing(ZmqTransport())
    server, client = closing(transport.listen(LOOPBACK)), closing(transport.connect())
    client.send(server.address, [b"first"])
    peer, _ = poll(server)
    server.send(peer, [b"header", b"body", b"end"])
    wait_until(client.ready, WAIT_S, "the answer")
    client._socket, real = SignalAt(client._socket, at), client._socket
    with pytest.raises(KeyboardInterrupt):
        client.receive()
    client._socket = real
    server.send(peer, [b"last"])
    assert poll(client) == (server.address, [b"last"])
