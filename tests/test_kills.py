"""Real processes with a log, killed: the run goes on without help, and everything counts once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.command import Command, wait_until
from tests.counting_runs import Start, assert_counted_once, launch_counting, write_counting_examples

LOGGED = ("--durability", "log", "--restarts", "9")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_counting_examples(tmp_path_factory.mktemp("kills") / "examples.parquet")


def kill_and_wait(command: Command, *victims: str) -> float:
    """Kill processes at once, and wait until each has a successor; how long that took."""
    before = {victim: command.pid_of(victim) for victim in victims}
    begin_s = time.monotonic()
    for victim in victims:
        command.kill(victim)
    for victim, pid in before.items():
        wait_until(
            lambda name=victim, old=pid: command.pid_of(name) != old, 20, f"{victim}\n{command.output}"
        )
    return time.monotonic() - begin_s


def test_a_killed_coordinator_is_started_again_and_training_goes_on(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=["--pause-s", "0.02"], options=LOGGED)
    kill_and_wait(command, "coordinator")
    time.sleep(1.0)
    kill_and_wait(command, "coordinator", "trainer 1")
    assert command.finish(60) == 0, command.output
    assert_counted_once(tmp_path / "checkpoint", examples)
    assert len(command.lines("coordinator (localhost")) == 2
    assert "Traceback" not in command.output
