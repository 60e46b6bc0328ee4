"""Probes of a process over HTTP, as Kubernetes asks them."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from launch.worker.health_server import serve_health
from pslib.errors import ConfigurationError
from pslib.process.health import TURN_S, Health
from tests.support.hand_clock import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def health(clock: HandClock) -> Health:
    return Health(clock)


@pytest.fixture
def port(health: Health) -> Iterator[int]:
    server = serve_health(0, health)
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_a_process_that_starts_is_alive_and_not_ready(port: int, health: Health) -> None:
    assert ask(port, "/livez") == (200, "ok\n")
    assert ask(port, "/readyz") == (503, "waits for its start\n")
    health.waits_for = ""
    assert ask(port, "/readyz") == (200, "ok\n")


def test_a_stuck_loop_fails_both_probes_with_its_name(port: int, health: Health, clock: HandClock) -> None:
    health.waits_for = ""
    with health.loop("server"):
        clock.sleep_s(TURN_S + 5)
        said = (503, "the server loop has not turned for 65 s\n")
        assert ask(port, "/livez") == ask(port, "/readyz") == said


def test_another_path_is_not_found(port: int) -> None:
    assert ask(port, "/")[0] == 404


def test_a_taken_port_is_told_in_a_line(port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"--health: port {port} can't be taken"):
        serve_health(port)
