"""Sockets for HTTP: by which addresses they are reached."""

from __future__ import annotations

import socket

import pytest

from pslib.process.listening import listening_socket, url_host
from tests.support.machine.ipv6 import has_ipv6


def is_reached(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 5):
            return True
    except OSError:
        return False


@has_ipv6
@pytest.mark.parametrize("host", ["", "::"])
def test_all_of_a_machine_are_its_addresses_of_ipv4_and_of_ipv6(host: str) -> None:
    with listening_socket(host, 0) as listener:
        port = listener.getsockname()[1]
        assert is_reached("127.0.0.1", port)
        assert is_reached("::1", port)


def test_all_of_a_machine_without_ipv6_are_its_addresses_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listening_socket("", 0) as listener:
        assert listener.family == socket.AF_INET
        assert is_reached("127.0.0.1", listener.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=has_ipv6)])
def test_one_address_is_that_alone(host: str) -> None:
    with listening_socket(host, 0) as listener:
        port = listener.getsockname()[1]
        assert is_reached(host, port)
        assert not is_reached("::1" if host == "127.0.0.1" else "127.0.0.1", port)


def test_a_name_that_can_be_none_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="label"):
        listening_socket("a..b", 0)


def test_ipv6_has_brackets_in_an_address() -> None:
    assert (url_host("fd00::7"), url_host("10.0.0.7"), url_host("node-a")) == (
        "[fd00::7]",
        "10.0.0.7",
        "node-a",
    )
