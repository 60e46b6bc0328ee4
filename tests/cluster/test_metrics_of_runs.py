"""Metrics of real processes: where they are told, and that no series goes back when a server is killed."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path

from tests.support.processes.command import Command
from tests.support.processes.counting_runs import (
    SLOWLY,
    Start,
    assert_ends_well,
    launch_counting,
    wait_for_successors,
)
from tests.support.waiting import wait_until

PUSHES = "pslib_push_requests_total{"
LOGGED = ("--durability", "log", "--restarts", "9")


def targets(command: Command, folder: Path) -> dict[str, str]:
    """Address of each process's metrics."""
    command.wait_for("tells Prometheus where they are")
    told = json.loads((folder / "out" / "metrics_targets.json").read_text())
    return {one["labels"]["process"]: one["targets"][0] for one in told}


def scrape(address: str) -> dict[str, float]:
    """Value of each series."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def pushes(address: str) -> dict[str, float]:
    """Pushes that have come to a server, by series."""
    return {series: value for series, value in scrape(address).items() if PUSHES in series}


def falls(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Series of counters and histograms that have gone back."""
    kinds = ("_total{", "_bucket{", "_count{", "_sum{")
    return [
        one for one in before if any(k in one for k in kinds) and after.get(one, before[one]) < before[one]
    ]


def test_no_series_goes_back_when_a_server_is_killed_and_comes_back(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    options = (*LOGGED, "--metrics-port", "0")
    command = launch_counting(start, examples, tmp_path, more=SLOWLY, options=options)
    processes = {"coordinator", "server 0", "server 1", "trainer 0", "trainer 1"}
    wait_until(lambda: processes <= set(targets(command, tmp_path)), 30, "targets of all processes")
    first = targets(command, tmp_path)
    assert all(address.startswith("127.0.0.1:") for address in first.values())

    wait_until(lambda: any(pushes(first["server 1"]).values()), 30, "server 1 to take pushes")
    seen = {name: scrape(address) for name, address in first.items()}
    before = {"server 1": command.pid_of("server 1")}
    command.kill("server 1")
    wait_for_successors(command, before)
    wait_until(lambda: targets(command, tmp_path)["server 1"] != first["server 1"], 30, "its new address")
    second = targets(command, tmp_path)
    wait_until(lambda: any(pushes(second["server 1"]).values()), 30, "its successor to take pushes")
    (old,), (new,) = (one for one in seen["server 1"] if PUSHES in one), pushes(second["server 1"])
    assert re.sub('incarnation="[0-9a-f]+"', "", old) == re.sub('incarnation="[0-9a-f]+"', "", new)
    assert old != new
    for name, address in second.items():
        assert not falls(seen[name], scrape(address)), name
    assert_ends_well(command, examples)


def test_a_port_of_metrics_that_is_taken_is_told_in_one_line(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--metrics-port", str(port), "--restarts", "0")
        command = launch_counting(start, examples, tmp_path, options=options)
        assert command.finish(60) != 0
    (line,) = command.lines(f"metrics.port: port {port} can't be taken: Address already in use")
    assert line.startswith("pslib: ")
    assert "Traceback" not in command.output
