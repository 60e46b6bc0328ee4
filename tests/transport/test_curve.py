"""Links with keys: admitted clients, refused ones with their reason, and no silent waits."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import zmq

from pslib.client.endpoint import Endpoint
from pslib.clock import SystemClock
from pslib.config import Timing
from pslib.errors import AccessError, ConfigurationError, RemoteProtocolError
from pslib.transport import Keys, Peer, ZmqTransport
from pslib.transport.curve import ZapHandler
from pslib.transport.keys import make_keys
from pslib.transport.monitor import mechanism_at
from pslib.wire.codec import Codec
from pslib.wire.messages import Failure, Stats
from tests.support.waiting import PATIENCE, PATIENCE_S

LOOPBACK = "tcp://127.0.0.1:0"
NAMED_S = 3.0
"""Within so long a caller must know what is wrong."""
MADE = make_keys()
OTHERS = make_keys()


class Answering:
    """A server that says ``Failure(internal, ROLE)`` to every client, in a thread."""

    def __init__(self, keys: Keys | None, address: str = LOOPBACK) -> None:
        self.transport = ZmqTransport(keys=keys)
        self.link = self.transport.listen(address)
        self.address = self.link.address
        self.seen: list[bytes] = []
        self._codec, self._over = Codec("demo"), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            for peer, frames in self.link.poll(0.05):
                self.seen.append(peer)
                self.link.send(peer, self._codec.encode(*self._answer(peer, frames)))

    def _answer(self, peer: bytes, frames: list[Any]) -> tuple[int, Failure]:
        try:
            request_id = self._codec.decode(frames).request_id
        except RemoteProtocolError as error:
            return 0, Failure("protocol", str(error))
        return request_id, Failure("internal", getattr(peer, "role", "nobody known"))

    def close(self) -> None:
        self._over = True
        self._thread.join(10)
        self.link.close()
        self.transport.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Answering]]:
    """Servers that are closed at the end."""
    servers: list[Answering] = []

    def one(*arguments: Any) -> Answering:
        servers.append(Answering(*arguments))
        return servers[-1]

    yield one
    for server in servers:
        server.close()


@contextmanager
def endpoint_of(keys: Keys | None, cluster_id: str = "demo") -> Iterator[Endpoint]:
    """A client's endpoint on a transport of its own."""
    transport = ZmqTransport(keys=keys)
    endpoint = Endpoint(transport.connect(), Codec(cluster_id), Timing(), SystemClock(), 1)
    try:
        yield endpoint
    finally:
        endpoint.close()
        transport.close()


def ask(
    address: str, keys: Keys | None, wait_s: float = 10.0, cluster_id: str = "demo"
) -> tuple[Exception, float]:
    """Return the error that a question ends with, and its seconds."""
    with endpoint_of(keys, cluster_id) as endpoint:
        started_s = time.monotonic()
        try:
            endpoint.ask(address, Stats()).wait(wait_s)
            raise AssertionError("an answer that is no failure")
        except Exception as error:
            return error, time.monotonic() - started_s


@pytest.mark.parametrize("role", sorted(MADE))
def test_a_server_knows_the_role_of_the_client_that_asks(serve: Any, role: str) -> None:
    server = serve(MADE["server"])
    error, _seconds = ask(server.address, MADE[role])
    assert str(error) == f"{server.address}: {role}"


def test_without_keys_no_peer_has_a_role(serve: Any) -> None:
    server = serve(None)
    assert "nobody known" in str(ask(server.address, None)[0])
    assert not isinstance(server.seen[0], Peer)


@pytest.mark.parametrize(
    ("listens", "asks", "said"),
    [
        (MADE["server"], replace(OTHERS["trainer"], server_public=MADE["server"].server_public),
         "it refused this key: it knows no such trainer"),
        (MADE["server"], OTHERS["trainer"], "it has another server key than this trainer's file says"),
        (MADE["server"], None, "it is encrypted and this process has no key; give it one with --keys"),
        (None, MADE["reader"], "it speaks without encryption, this cluster is encrypted"),
    ],
    ids=["unknown key", "another cluster's", "no key", "a plain server"],
)  # fmt: skip
def test_a_connection_that_can_not_be_is_one_line_within_three_seconds(
    serve: Any, listens: Keys | None, asks: Keys | None, said: str
) -> None:
    server = serve(listens)
    error, seconds = ask(server.address, asks)
    assert isinstance(error, AccessError)
    assert str(error).startswith(f"{server.address}: {said}")
    assert "\n" not in str(error)
    assert seconds < PATIENCE * NAMED_S
    assert server.seen == []
    if listens:  # and admitted clients are served as before
        assert "trainer" in str(ask(server.address, MADE["trainer"])[0])


def test_a_server_of_another_cluster_is_named_at_once(serve: Any) -> None:
    """The server refuses the client in a message of its own cluster, which is foreign to the client."""
    server = serve(None)
    error, seconds = ask(server.address, None, cluster_id="other")
    assert isinstance(error, RemoteProtocolError)
    assert str(error) == (
        f"{server.address}: cluster id: expected 'other', got 'demo'; this is another cluster"
    )
    assert seconds < PATIENCE * NAMED_S


def test_a_key_that_is_refused_is_refused_again_and_never_waits_in_silence(serve: Any) -> None:
    """ZeroMQ gives a refused connection up for good: a second question on it would wait for ever."""
    server = serve(MADE["server"])
    stranger = replace(OTHERS["trainer"], server_public=MADE["server"].server_public)
    with endpoint_of(stranger) as endpoint:
        for _ in range(3):
            with pytest.raises(AccessError, match="it refused this key"):
                endpoint.ask(server.address, Stats()).wait(PATIENCE * NAMED_S)


def test_a_server_that_comes_back_with_this_key_is_found(serve: Any) -> None:
    """A port may be another process's for a moment; what is asked later finds the right one."""
    first = serve(OTHERS["server"])
    with endpoint_of(MADE["trainer"]) as endpoint:
        with pytest.raises(AccessError, match="another server key"):
            endpoint.ask(first.address, Stats()).wait(PATIENCE * NAMED_S)
        first.close()
        serve(MADE["server"], first.address)
        with pytest.raises(Exception, match="trainer"):
            endpoint.ask(first.address, Stats()).wait(PATIENCE_S)


def test_a_proxy_whose_server_is_gone_is_no_wrong_key() -> None:
    """The proxy takes the connection and hangs up, as a server with another key does, but does not greet."""
    listening = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    over = threading.Event()

    def hang_up() -> None:
        while not over.is_set():
            listening.accept()[0].close()

    thread = threading.Thread(target=hang_up, daemon=True)
    thread.start()
    try:
        error, _seconds = ask(address, MADE["trainer"], wait_s=1.5)
        assert str(error).startswith("waited 1.5 s")
        assert mechanism_at(address) == ""
    finally:
        over.set()
        socket.create_connection(listening.getsockname()).close()
        thread.join(10)
        listening.close()


def test_a_greeting_says_whether_a_server_encrypts(serve: Any) -> None:
    assert mechanism_at(serve(MADE["server"]).address) == "CURVE"
    assert mechanism_at(serve(None).address) == "NULL"
    assert mechanism_at("tcp://127.0.0.1:9") == ""


def test_with_keys_a_server_may_listen_where_other_machines_reach_it() -> None:
    transport = ZmqTransport(keys=MADE["server"])
    link = transport.listen("tcp://0.0.0.0:0")
    link.close()
    transport.close()


def test_no_peer_listens_with_a_key_that_is_not_a_servers() -> None:
    transport = ZmqTransport(keys=MADE["trainer"])
    with pytest.raises(ConfigurationError, match=r"this key is a trainer's; give server\.keys"):
        transport.listen(LOOPBACK)
    transport.close()


def test_no_peer_gets_in_while_none_answers_for_keys(serve: Any) -> None:
    """Without ZAP_ENFORCE_DOMAIN, ZeroMQ admits every client when its question is not answered."""
    server = serve(MADE["server"])
    server.transport._zap.close()
    error, _seconds = ask(server.address, MADE["trainer"], wait_s=1.0)
    assert server.seen == []
    assert isinstance(error, Exception)


def test_one_handler_answers_for_all_links_of_a_transport() -> None:
    transport = ZmqTransport(keys=MADE["server"])
    links = [transport.listen(LOOPBACK) for _ in range(3)]
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("pslib-zap") == 1
    for link in links:
        link.close()
    transport.close()
    assert "pslib-zap" not in [thread.name for thread in threading.enumerate()]


class TestTheHandlerOfKeys:
    @pytest.fixture
    def handler(self) -> Iterator[ZapHandler]:
        context: zmq.Context[Any] = zmq.Context()
        handler = ZapHandler(context, MADE["server"].allowed)
        yield handler
        handler.close()
        context.term()

    def question(self, **changes: bytes) -> list[bytes]:
        from zmq.utils import z85

        parts = {
            "version": b"1.0", "id": b"7", "domain": b"pslib", "address": b"10.0.0.1", "identity": b"",
            "mechanism": b"CURVE", "key": z85.decode(MADE["reader"].public),
        }  # fmt: skip
        return list((parts | changes).values())

    def test_a_known_key_has_its_role(self, handler: ZapHandler) -> None:
        assert handler.answer(self.question()) == [b"1.0", b"7", b"200", b"OK", b"reader", b""]

    @pytest.mark.parametrize(
        "changes",
        [{"key": bytes(32)}, {"key": b""}, {"mechanism": b"NULL"}, {"domain": b"*"}, {"domain": b""}],
    )
    def test_all_else_is_refused(self, handler: ZapHandler, changes: dict[str, bytes]) -> None:
        assert handler.answer(self.question(**changes))[2:] == [b"400", b"unknown key", b"", b""]
        assert handler.refused == 1

    @pytest.mark.parametrize("keep", range(7))
    def test_a_question_cut_short_is_refused(self, handler: ZapHandler, keep: int) -> None:
        assert handler.answer(self.question()[:keep])[2] == b"400"

    def test_strangers_are_logged_with_their_public_key_and_not_without_end(
        self, handler: ZapHandler, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(50):
            handler.answer(self.question(key=bytes([number]) * 32))
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 20
        assert lines[0].startswith("pslib: refused a connection from 10.0.0.1: its key ")

    @pytest.mark.parametrize(
        ("address", "who"),
        [
            (b"2001:db8::1", "2001:db8::1"),
            (b"fe80::a:b", "fe80::a:b"),
            (b"localhost:7:8:99", "process 99 of user 7"),
        ],
        ids=["three colons", "another", "a Unix socket"],
    )
    def test_a_stranger_is_named_by_address_or_at_a_unix_socket_by_process_and_user(
        self, handler: ZapHandler, caplog: pytest.LogCaptureFixture, address: bytes, who: str
    ) -> None:
        handler.answer(self.question(address=address, key=bytes(32)))
        assert caplog.messages[0].startswith(f"pslib: refused a connection from {who}: its key ")


def test_no_peer_takes_over_a_connection_by_its_identity(serve: Any) -> None:
    """Identities can be guessed; with ROUTER_HANDOVER a thief would get the answers of their owner."""
    server = serve(None)
    ask(server.address, None)
    with zmq.Context() as context, context.socket(zmq.DEALER) as owner, context.socket(zmq.DEALER) as thief:
        for one in (owner, thief):
            one.linger, one.rcvtimeo = 0, 5000
        frames = [bytes(frame) for frame in Codec("demo").encode(5, Stats())]
        owner.connect(server.address)
        owner.send_multipart(frames)
        owner.recv_multipart()
        thief.setsockopt(zmq.ROUTING_ID, bytes(server.seen[-1]))
        thief.connect(server.address)
        thief.send_multipart(frames)
        owner.send_multipart(frames)
        assert owner.recv_multipart()
        assert thief.poll(200) == 0


def test_garbage_connections_cost_a_server_with_keys_nothing(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(MADE["server"])
    host, port = "127.0.0.1", int(server.address.rpartition(":")[2])
    for number in range(300):
        with socket.create_connection((host, port), 5) as garbage:
            garbage.sendall(os.urandom(number % 90))
    assert "trainer" in str(ask(server.address, MADE["trainer"])[0])
    assert len(caplog.records) <= 5
