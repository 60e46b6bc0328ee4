"""Processes of one machine meet at Unix sockets, and by TCP where that can't be."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from launch.calibration.calibrate import over_tcp
from pslib.errors import ConfigurationError
from pslib.transport import Keys, Peer, ZmqTransport, addresses, zmq_link
from pslib.transport.keys import make_keys
from pslib.transport.router import OPTIONS
from tests.support.links import LOOPBACK, come, poll
from tests.support.waiting import WAIT_S, wait_until

NOBODY = 65534
KEYS = make_keys()
CONNECTED = {"unix": "03", "tcp": "01"}
SERVER = f"""
import sys
from pslib.transport import ZmqTransport
link = ZmqTransport().listen("{LOOPBACK}")
print(link.address, flush=True)
while True:
    for peer, frames in link.poll(0.1):
        link.send(peer, frames)
"""


@pytest.fixture
def opened(closing: Any) -> Any:
    """Makes links of transports of their own."""

    def one(address: str | None = None, keys: Keys | None = None, **options: Any) -> Any:
        transport = ZmqTransport(keys=keys, **options)
        try:
            return closing(transport.connect() if address is None else transport.listen(address))
        finally:
            closing(transport)

    return one


@contextmanager
def squatter(address: str) -> Iterator[socket.socket]:
    """Another user that listens at the name that belongs to an address.

    Only root can be another user; elsewhere the checking process takes itself for another user.
    """
    us = os.geteuid()
    root = us == 0
    with socket.socket(socket.AF_UNIX) as taken, pytest.MonkeyPatch.context() as patch:
        taken.bind(name_of(address))
        if root:
            os.seteuid(NOBODY)  # the kernel remembers the user that listens, not the one that has bound
        try:
            taken.listen()
        finally:
            if root:
                os.seteuid(0)
        if not root:
            patch.setattr(addresses.os, "geteuid", lambda: us + 1)
        taken.setblocking(False)
        yield taken


def name_of(address: str) -> str:
    return "\0pslib-" + address.removeprefix("tcp://")


def carried_by(address: str) -> set[str]:
    """Return the transports that are connected to an address just now."""
    found = set()
    for line in Path("/proc/net/unix").read_text().splitlines():
        if line.endswith(f" @{name_of(address)[1:]}") and line.split()[5] == CONNECTED["unix"]:
            found.add("unix")
    port = f":{int(address.rpartition(':')[2]):04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        if line.split()[1].endswith(port) and line.split()[3] == CONNECTED["tcp"]:
            found.add("tcp")
    return found


def talk(client: Any, server: Any, address: str = "") -> Any:
    """Ask and answer once; return the client, as the server sees it."""
    address = address or server.address
    client.send(address, [b"question"])
    peer, frames = poll(server)
    server.send(peer, [b"answer to", *frames])
    assert poll(client) == (address, [b"answer to", b"question"])
    return peer


def test_processes_of_one_machine_meet_at_a_unix_socket_and_call_each_other_by_tcp_addresses(
    opened: Any,
) -> None:
    server = opened(LOOPBACK)
    assert server.address.startswith("tcp://127.0.0.1:")
    talk(opened(), server)
    assert carried_by(server.address) == {"unix"}


def test_links_are_encrypted_and_roles_known_there_too_and_to_look_is_no_refused_connection(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = opened(LOOPBACK, KEYS["server"])
    for role in ("trainer", "reader"):
        peer = talk(opened(None, KEYS[role]), server)
        assert isinstance(peer, Peer)
        assert peer.role == role
    assert carried_by(server.address) == {"unix"}
    assert server.poll(0.2) == []
    assert caplog.messages == []


def test_a_process_without_a_key_is_refused_there_and_told_by_user_and_process(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = replace(make_keys()["trainer"], server_public=KEYS["server"].server_public)
    server, client = opened(LOOPBACK, KEYS["server"]), opened(None, stranger)
    client.send(server.address, [b"let me in"])
    told = until(lambda: client.wait(0.05) or client.refusals(), server)
    assert told[0][0] == server.address
    assert told[0][1].startswith("it refused this key")
    who = f"process {os.getpid()} of user {os.geteuid()}"
    assert f"refused a connection from {who}: its key {stranger.public}" in caplog.text


@pytest.mark.parametrize("listens", [True, False], ids=["a client", "a server"])
def test_an_endpoint_that_is_told_to_goes_by_tcp(opened: Any, listens: bool) -> None:
    server, client = opened(LOOPBACK, same_host=listens), opened(None, same_host=not listens)
    talk(client, server)
    assert carried_by(server.address) == {"tcp"}


def test_the_environment_may_say_tcp_as_calibration_does(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with over_tcp():
        server = opened(LOOPBACK)
    talk(opened(), server)
    assert carried_by(server.address) == {"tcp"}
    talk(opened(), again := opened(LOOPBACK))
    assert carried_by(again.address) == {"unix"}
    monkeypatch.setenv(addresses.VARIABLE, "udp")
    with pytest.raises(ConfigurationError, match="PSLIB_SAME_HOST: expected unix or tcp, got 'udp'"):
        ZmqTransport()


def test_a_system_without_abstract_names_goes_by_tcp_and_makes_no_file(
    opened: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(addresses, "ABSTRACT_SOCKETS", False)
    monkeypatch.chdir(tmp_path)
    server = opened(LOOPBACK)
    talk(opened(), server)
    assert carried_by(server.address) == {"tcp"}
    assert list(tmp_path.iterdir()) == []


def test_where_unix_sockets_are_forbidden_tcp_does_it_all(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any) -> None:
        raise PermissionError("as a sandbox says it")

    server = opened(LOOPBACK)
    monkeypatch.setattr("pslib.process.platform.socket.socket", forbidden)
    talk(opened(), server)
    assert carried_by(server.address) == {"tcp"}


def test_no_peer_connects_to_a_name_that_another_user_has_taken(opened: Any) -> None:
    server = opened(LOOPBACK, same_host=False)
    with squatter(server.address) as taken:
        talk(opened(), server)
        assert carried_by(server.address) - {"unix"} == {"tcp"}
        looked, _ = taken.accept()
        assert looked.recv(1) == b""  # the process that looked has said nothing and gone
        looked.close()
        with pytest.raises(BlockingIOError):
            taken.accept()


def test_a_server_whose_name_another_user_has_taken_listens_by_tcp(opened: Any) -> None:
    first = opened(LOOPBACK, same_host=False)
    address = first.address
    with squatter(address):
        first.close()
        server = listen_again(opened, address)
        talk(opened(), server)
        assert carried_by(address) - {"unix"} == {"tcp"}


def test_a_server_for_all_addresses_is_reached_by_each_of_them(opened: Any) -> None:
    server = opened("tcp://0.0.0.0:0", insecure_network=True)
    port = server.address.rpartition(":")[2]
    for host in ("127.0.0.1", "0.0.0.0", "localhost"):
        talk(opened(), server, f"tcp://{host}:{port}")


@pytest.mark.parametrize("host", ["x" * 300, "[::1]", "no such host"])
def test_an_address_without_a_listener_is_no_name(host: str) -> None:
    address = addresses.unix_address(f"tcp://{host}:1")
    assert address is not None
    assert not addresses.is_ours(address)


def test_names_and_addresses_are_one_and_the_same() -> None:
    beside = addresses.unix_address("tcp://10.0.0.1:7000")
    assert beside == "ipc://@pslib-10.0.0.1:7000"
    assert addresses.tcp_address(beside) == "tcp://10.0.0.1:7000"
    assert addresses.tcp_address("tcp://10.0.0.1:7000") == "tcp://10.0.0.1:7000"
    assert addresses.unix_address("inproc://x") is None


def test_a_successor_without_a_unix_socket_is_found_by_tcp_when_its_predecessor_was_killed(
    opened: Any,
) -> None:
    """ZeroMQ alone would look for the name for ever."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address, client = process.stdout.readline().strip(), opened()
        client.send(address, [b"one"])
        assert poll(client) == (address, [b"one"])
        assert carried_by(address) == {"unix"}
        os.kill(process.pid, signal.SIGKILL)
    server = listen_again(opened, address, same_host=False)

    def ask() -> list[Any]:
        client.send(address, [b"two"])
        client.wait(0.02)
        client.refusals()
        return server.poll(0.02)

    ((peer, _frames),) = until(ask)[:1]
    server.send(peer, [b"answer"])
    assert until(lambda: come(client, 0.05))[0] == (address, [b"answer"])
    assert carried_by(address) == {"tcp"}


@pytest.mark.parametrize("same_host", [True, False])
def test_a_client_by_a_unix_socket_does_not_ask_whether_the_other_lives(opened: Any, same_host: bool) -> None:
    server, client = opened(LOOPBACK, same_host=same_host), opened()
    talk(client, server)
    asks_ms = client._socket.getsockopt(zmq.HEARTBEAT_IVL)
    assert asks_ms == (0 if same_host else OPTIONS[zmq.HEARTBEAT_IVL][0])


def test_two_peers_with_nothing_to_say_by_zeromq_stay_connected(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server asks now and then, and the process that it asks does not wait for the next time."""
    monkeypatch.setattr(zmq_link, "SERVER_HEARTBEAT_MS", 200)
    for option in (zmq.HEARTBEAT_TTL, zmq.HEARTBEAT_TIMEOUT):
        monkeypatch.setitem(OPTIONS, option, (100, "less than until the next time"))
    server, client = opened(LOOPBACK), opened()
    talk(client, server)
    client.silent.add(server.address)  # so that it looks for troubles
    until_s = time.monotonic() + 1.2
    while time.monotonic() < until_s:
        client.wait(0.02)
        assert client.refusals() == []
        assert server.poll(0.0) == []
    assert carried_by(server.address) == {"unix"}


def test_a_server_that_dies_before_a_peer_is_told_leaves_no_name() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        beside = addresses.unix_address(process.stdout.readline().strip())
        assert beside is not None
        assert addresses.is_ours(beside)
        os.kill(process.pid, signal.SIGKILL)
    assert not addresses.is_ours(beside)


def listen_again(opened: Any, address: str, **options: Any) -> Any:
    """The kernel may hold the port for a moment."""

    def listen() -> Any:
        try:
            return opened(address, **options)
        except ConfigurationError:
            time.sleep(0.05)

    return until(listen)


def until(attempt: Any, server: Any = None) -> Any:
    """The first result that is one; meanwhile a server sees to its own."""
    result = None

    def is_one() -> bool:
        nonlocal result
        result = attempt()
        if not result and server is not None:
            server.poll(0)
        return bool(result)

    wait_until(is_one, WAIT_S, "something to come of it", pause_s=0)
    return result
