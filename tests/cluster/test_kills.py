"""Real processes with a log, killed: the run goes on without help, and everything counts once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pslib.config import Timing
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import (
    ROWS,
    SLOWLY,
    Start,
    assert_ends_well,
    launch_counting,
    wait_for_steps,
    wait_for_successors,
    write_job,
)
from tests.support.waiting import wait_until

SILENCE_S = Timing().silence_s
LOGGED = ("--durability", "log", "--restarts", "9")


def kill_and_wait(command: Command, *victims: str) -> None:
    """Kill processes at once, and wait until each has a successor."""
    before = {victim: command.pid_of(victim) for victim in victims}
    for victim in victims:
        command.kill(victim)
    wait_for_successors(command, before)


def test_a_killed_coordinator_is_started_again_and_training_goes_on(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=SLOWLY, options=LOGGED)
    kill_and_wait(command, "coordinator")
    time.sleep(1.0)
    kill_and_wait(command, "coordinator", "trainer 1")
    assert_ends_well(command, examples)
    assert len(command.lines("coordinator (localhost")) == 2


def test_a_process_whose_log_can_not_be_opened_any_more_is_started_again_without_one(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=SLOWLY, options=LOGGED)
    log, pid = tmp_path / "out" / "logs" / "trainer-1.log", command.pid_of("trainer 1")
    log.rename(log.with_suffix(".before"))
    log.mkdir()
    os.kill(pid, signal.SIGKILL)
    command.wait_for("the log of trainer 1 can't be written")
    assert_ends_well(command, examples)
    (line,) = command.lines("the log of trainer 1 can't be written: Is a directory; what it says from now on")
    assert str(log) in line


# --- any process, at any moment ---

PUSHING = Path(__file__).parents[1] / "support" / "processes" / "pushing_script.py"


def alive(command: Command, names: Sequence[str]) -> list[str]:
    """Return the named processes that run now."""
    return [name for name in names if psutil.pid_exists(command.pid_of(name))]


EVERYBODY = ("coordinator", "server 0", "server 1", "trainer 0", "trainer 1")
SOAK = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("kills", "seed", "pause_s", "told"),
    [
        pytest.param(20, 1, 1.0, 15, marks=pytest.mark.timeout(240)),
        *(pytest.param(100, seed, 2.0, 80, marks=SOAK) for seed in (2, 3, 4)),
    ],
)
def test_every_acknowledged_push_is_in_once_whichever_process_is_killed(
    start: Start, tmp_path: Path, kills: int, seed: int, pause_s: float, told: int
) -> None:
    """Trainers push, each push with keys of its own, while processes are killed; then all rows are read."""
    choice, folder = random.Random(seed), tmp_path
    command = start(
        "launch", "--servers", "2", "--trainers", "2", "--durability", "log", "--restarts", "1000",
        "--out", folder / "out", "--quiet", PUSHING, folder,
    )  # fmt: skip
    wait_until(lambda: len(command.lines("pushing")) == 2, 40, lambda: f"trainers to push:\n{command.output}")
    for _ in range(kills):
        time.sleep(choice.expovariate(1 / pause_s))
        if here := alive(command, EVERYBODY):
            with suppress(ProcessLookupError):  # killed a moment ago, and gone since it was looked for
                command.kill(choice.choice(here))
        assert command.process.poll() is None, command.output
    (folder / "stop").touch()
    assert command.finish(100) == 0, command.output
    right = command.lines("pushes, 0 wrong: []")
    assert {line.split("rank ")[1][0] for line in right} == {"0", "1"}, command.output
    assert "Traceback" not in command.output
    assert len(command.lines("was killed by signal 9 (SIGKILL)")) >= told


def test_a_stopped_server_is_replaced_and_training_goes_on(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=SLOWLY, options=LOGGED)
    before = {"server 1": command.pid_of("server 1")}
    command.kill("server 1", signal.SIGSTOP)
    command.wait_for("has been silent for 6 s and counts as lost", SILENCE_S + 10)
    wait_for_successors(command, before)
    assert_ends_well(command, examples)


def test_a_step_of_all_trainers_waits_for_the_one_that_was_killed(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    epochs = 4  # so many that the kill finds it in a step, though it comes seconds late
    training = {"batch_rows": 32, "consistency": "sync", "staleness": 0, "lease_rows": 512, "epochs": epochs}
    job = write_job(tmp_path, examples, training, {"servers": 2, "trainers": 2})
    command = start("train", job, "--quiet")
    wait_for_steps(command)
    command.kill("trainer 1")
    assert command.finish(90) == 0, command.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["examples"], summary["pushes_applied"]) == (epochs * ROWS, epochs * ROWS // 32)
    assert len(command.lines("was killed by signal 9 (SIGKILL)")) == 1
    assert "Traceback" not in command.output
