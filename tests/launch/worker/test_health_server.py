"""Probes of a process over HTTP, as Kubernetes asks them."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from launch.worker.health_server import serve_health, serve_metrics
from pslib.errors import ConfigurationError
from pslib.process.health import TURN_S, Health
from pslib.process.reported import Reported, Reporter
from tests.support.hand_clock import HandClock
from tests.support.machine.ipv6 import has_ipv6


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


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
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


def test_metrics_are_those_of_the_last_heartbeat() -> None:
    counters = Reported()
    server = serve_health(0, host="127.0.0.1", counters=counters)
    try:
        port = server.server_address[1]
        assert counters.wanted
        assert ask(port, "/metrics") == (200, "")
        counters.show(Reporter("server", 2, "run-7", "1f"), {"rows": 12})
        status, text = ask(port, "/metrics")
        assert status == 200
        assert 'pslib_rows{incarnation="1f",rank="2",role="server",run="run-7"} 12.0' in text
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("[::1]", marks=has_ipv6)])
def test_metrics_are_served_at_the_host_of_an_address(host: str) -> None:
    address = serve_metrics(f"tcp://{host}:0")
    told, _, port = address.rpartition(":")
    assert told == host
    assert ask(int(port), "/metrics", host.strip("[]"))[0] == 200
    with pytest.raises(
        ConfigurationError, match=f"^metrics.port: port {port} can't be taken: Address already"
    ):
        serve_metrics(f"tcp://{address}")


def test_a_taken_port_is_told_in_a_line(port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"--health: port {port} can't be taken"):
        serve_health(port)
