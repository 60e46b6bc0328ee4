"""The page of a cluster of real processes: a server that is killed is shown, and so is its return."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.job.yaml12 import write_yaml
from launch.runs.demo import demo_job
from pslib.data.synthetic.generator import GeneratorConfig, generate
from tests.monitor.pages import ask, events
from tests.support.processes.standin_launch import ROOT

STATES_MAX = 120
"""States, one a second, in which what is awaited must be told."""


@pytest.fixture
def training(tmp_path: Path):
    """A training with logs and a page, and the page's address."""
    generate(tmp_path / "data", GeneratorConfig(train_rows=60_000, test_rows=2_000))
    job = demo_job("data", "run")
    job["cluster"] |= {"durability": "log"}
    job["training"] |= {"epochs": 500}
    (tmp_path / "job.yaml").write_text(write_yaml(job))
    command = [
        sys.executable,
        "-m",
        "launch.cli.main",
        "train",
        str(tmp_path / "job.yaml"),
        "--quiet",
        "--ui",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stderr is not None
    url = ""
    for line in process.stderr:
        if found := re.fullmatch(r"pslib: the page of this run: (http://127\.0\.0\.1:\d+/)\n", line):
            url = found[1]
            break
    rest = threading.Thread(target=process.stderr.read, daemon=True)  # so that its pipe does not fill
    rest.start()
    try:
        assert url
        yield process, url, tmp_path / "run"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        rest.join(10)
        process.stderr.close()


def until(told, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the first state of which something is so."""
    for _, (kind, _number, data) in zip(range(STATES_MAX), told, strict=False):
        if kind == "state" and is_so(state := json.loads(data)):
            return state
    pytest.fail(f"not told in {STATES_MAX} events")


def where(state: dict[str, Any]) -> str:
    """Process of server 1."""
    return next(one["where"] for one in state["processes"] if (one["role"], one["rank"]) == ("server", 1))


def test_a_server_that_is_killed_is_shown_and_so_are_its_return_and_the_end(training):
    """The launcher starts it again before anybody has missed it: what is told first is its return."""
    process, url, out = training
    with events(url) as told:
        state = until(told, lambda state: state["run"]["examples"] > 0)
        assert (state["run"]["name"], state["run"]["state"]) == ("run", "running")
        killed = where(state)
        os.kill(int(killed.split()[1]), signal.SIGKILL)
        state = until(told, lambda state: any(one["kind"] == "back" for one in state["events"]))
        (back,) = (one for one in state["events"] if one["kind"] == "back")
        assert (back["role"], back["rank"]) == ("server", 1)
        assert f"was {killed}" in back["text"]
        assert where(state) != killed
        answer = ask(url, "/api/stacks/server/0", method="POST")
        assert "pslib" in answer.plain["text"]
        process.send_signal(signal.SIGTERM)
        until(told, lambda state: state["run"]["state"] != "running")
    assert process.wait(60) == 75
    assert json.loads((out / "monitor.json").read_text())["state"]["run"]["name"] == "run"
