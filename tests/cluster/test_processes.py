"""Real processes, killed, stopped and interrupted: how a run ends, what counts, and that nothing is left."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pslib.config import Timing
from tests.support.processes.command import Command, listening_sockets
from tests.support.processes.counting_runs import (
    ROWS,
    SCRIPT,
    SHARED,
    SLOWLY,
    Start,
    assert_counted_once,
    assert_ends_well,
    launch_counting,
    metric,
    wait_for_successors,
    write_job,
)
from tests.support.waiting import PATIENCE

SILENCE_S = Timing().silence_s
SOAK = [pytest.mark.soak]
TWO = {"servers": 2, "trainers": 2}
LOST_SERVER_S = 15
"""Within so long the end of a server must have ended the run, says the design."""


def train_forever(start: Start, examples: Path, tmp_path: Path, *more: str) -> Command:
    """``pslib train`` on 2 servers and 2 trainers, once the first examples are trained."""
    job = write_job(tmp_path, examples, {"epochs": 1000}, TWO)
    command = start("train", job, "--quiet", *more)
    command.wait(lambda: metric(command, "examples") > 0, 40, "trained examples")
    return command


# --- runs in which no process dies -------------------------------------------------------------------------


@pytest.mark.smoke
def test_every_example_counts_once_when_no_process_dies(start: Start, examples: Path, tmp_path: Path) -> None:
    command = launch_counting(start, examples, tmp_path, more=["--epochs", "2"])
    assert command.finish(60) == 0, command.output
    assert sorted(line.split("] ")[-1] for line in command.lines("finished")) == ["finished", "finished"]
    assert_counted_once(tmp_path / "checkpoint", examples, epochs=2)


def test_the_summary_of_a_run_balances_what_was_sent_and_what_was_applied(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    job = write_job(tmp_path, examples, {"epochs": 3}, TWO | {"shard_threads": 3}, test=str(examples))
    command = start("train", job, "--quiet")
    assert command.finish(90) == 0, command.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    listed = (
        "auc logloss examples seconds examples_per_s servers trainers rows parameters pushes_sent "
        "pushes_applied staleness_mean staleness_max pushes_between_mean pushes_between_max seed"
    )
    assert set(listed.split()) <= summary.keys()
    assert summary["pushes_sent"] == summary["pushes_applied"] > 0
    assert summary["updates_sent"] == summary["updates_applied"] > 0
    assert summary["examples"] == 3 * ROWS
    assert summary["rows"] == ROWS + SHARED
    assert (summary["servers"], summary["trainers"], summary["seed"]) == (2, 2, 7)
    assert 0 <= summary["staleness_mean"] <= summary["staleness_max"] <= 2
    assert 0 <= summary["pushes_between_mean"] <= summary["pushes_between_max"]
    assert (tmp_path / "out" / "run.png").stat().st_size > 1000


# --- a server, the coordinator or the launcher is lost ------------------------------------------------------


def test_a_killed_server_ends_the_run_with_one_line_that_names_it_and_what_was_lost(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = train_forever(start, examples, tmp_path)
    pid = command.pid_of("server 1")
    killed_s = command.kill("server 1")
    assert command.finish(LOST_SERVER_S) == 69
    assert time.monotonic() - killed_s < PATIENCE * LOST_SERVER_S
    (line,) = command.lines("server 1")
    assert f"pid {pid}" in line
    assert "was killed by signal 9 (SIGKILL)" in line
    assert "rows" in line
    assert "there is no checkpoint" in line
    assert "Traceback" not in command.output


def test_a_server_that_is_stopped_ends_the_run_with_a_line_that_names_it(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = train_forever(start, examples, tmp_path)
    stopped_s = command.kill("server 0", signal.SIGSTOP)
    assert command.finish(LOST_SERVER_S + 10) == 69
    assert time.monotonic() - stopped_s < PATIENCE * (LOST_SERVER_S + 6)
    assert "has been silent for 6 s and counts as lost" in command.output
    assert f"pid {command.pid_of('server 0')}" in command.output
    assert "Traceback" not in command.output


def test_a_killed_coordinator_ends_the_run_with_a_line_that_names_it(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = train_forever(start, examples, tmp_path)
    command.kill("coordinator")
    assert command.finish(LOST_SERVER_S) == 69
    (line,) = command.lines("coordinator")
    assert "was killed by signal 9 (SIGKILL)" in line
    assert "Traceback" not in command.output


def test_nothing_is_left_when_the_launcher_itself_is_killed(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = train_forever(start, examples, tmp_path)
    sockets = command.listening()
    assert len(sockets) == 3
    command.process.kill()
    assert command.finish(10) == -signal.SIGKILL
    assert command.left_over(10) == []
    assert not sockets & listening_sockets()


# --- Ctrl-C and SIGTERM -------------------------------------------------------------------------------------


def assert_workers_have_ended(command: Command) -> None:
    """A supervisor ends a moment after its process, also after the launcher; `start` waits for that."""
    names = ("coordinator", "server 0", "server 1", "trainer 0", "trainer 1")
    workers = {command.pid_of(name) for name in names}
    assert not [one for one in command.processes() if one.pid in workers]


@pytest.mark.parametrize(
    ("send", "sent", "within_s", "code"),
    [
        (os.killpg, signal.SIGINT, 15, 130),
        (os.kill, signal.SIGINT, 15, 130),
        (os.kill, signal.SIGTERM, 30, 75),
    ],
    ids=["Ctrl-C", "SIGINT", "SIGTERM"],
)
def test_a_signal_ends_everything_with_its_exit_code(
    start: Start, examples: Path, tmp_path: Path, send: Any, sent: int, within_s: int, code: int
) -> None:
    command = train_forever(start, examples, tmp_path)
    send(command.process.pid, sent)
    assert command.finish(within_s) == code
    assert "Traceback" not in command.output
    assert_workers_have_ended(command)


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=[*SOAK, pytest.mark.timeout(900)])])
def test_runs_that_are_stopped_at_any_moment_leave_no_process_and_no_port(
    start: Start, examples: Path, tmp_path: Path, count: int
) -> None:
    choice = random.Random(count)
    for number in range(count):
        out = tmp_path / f"out-{number}"
        command = start(
            "launch", "--servers", "2", "--trainers", "2", "--out", out, SCRIPT, examples, tmp_path / "saved",
        )  # fmt: skip
        time.sleep(choice.uniform(0.0, 3.0))
        sockets = command.listening()
        command.process.send_signal(choice.choice([signal.SIGINT, signal.SIGTERM]))
        code = command.finish(60)  # trainers have `drain_s`, servers 10 s, and a busy machine is slow
        assert command.left_over(30) == []
        assert not sockets & listening_sockets()
        if (out / "logs").exists():  # before that Python itself may have answered, while it started
            assert code in (130, 75, 0, -signal.SIGTERM), command.output
            assert "Traceback" not in command.output


# --- trainers -----------------------------------------------------------------------------------------------


def kill_trainers(command: Command, victims: int, trainers: int, seed: int) -> None:
    """Kill some trainers, each at a moment of its own."""
    choice = random.Random(seed)
    chosen = choice.sample(range(trainers), victims)
    begin_s = time.monotonic()
    for after_s, number in sorted((choice.uniform(0.0, 1.2), number) for number in chosen):
        time.sleep(max(0.0, begin_s + after_s - time.monotonic()))
        command.kill(f"trainer {number}")


RARE = [*SOAK, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("trainers", "seed"),
    [(2, 1), (4, 2), *(pytest.param(2 + seed % 3, seed, marks=RARE) for seed in range(100, 150))],
)
def test_every_example_counts_once_when_all_trainers_but_one_are_killed(
    start: Start, examples: Path, tmp_path: Path, trainers: int, seed: int
) -> None:
    command = launch_counting(start, examples, tmp_path, trainers=trainers, more=SLOWLY)
    kill_trainers(command, trainers - 1, trainers, seed)
    assert_ends_well(command, examples)
    assert len(command.lines("was killed by signal 9 (SIGKILL)")) == trainers - 1


def test_trainers_that_are_killed_again_and_again_are_started_again_and_every_example_counts_once(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    """Both at once, too: for a while no process is left."""
    command = launch_counting(start, examples, tmp_path, more=SLOWLY)
    for victims in (("trainer 0", "trainer 1"), ("trainer 1",)):
        pids = {victim: command.pid_of(victim) for victim in victims}
        for victim in victims:
            command.kill(victim)
        wait_for_successors(command, pids)
        time.sleep(1.0)
    assert_ends_well(command, examples)
    assert len(command.lines("started again in 0.5 s (1 of 3)")) == 2
    assert len(command.lines("(2 of 3)")) == 1  # in 1 s, or 0.5 where its start alone takes a while


def test_when_all_trainers_are_killed_the_run_says_so(start: Start, examples: Path, tmp_path: Path) -> None:
    command = launch_counting(start, examples, tmp_path, more=SLOWLY, options=["--restarts", "0"])
    for number in range(2):
        command.kill(f"trainer {number}")
    assert command.finish(15) == 69
    assert len(command.lines("was killed by signal 9 (SIGKILL)")) == 2
    assert "Traceback" not in command.output


def test_a_trainer_that_sleeps_too_long_is_fenced_and_nothing_counts_twice(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=SLOWLY)
    time.sleep(0.3)
    command.kill("trainer 0", signal.SIGSTOP)
    command.wait_for("is lost", SILENCE_S + 5)
    command.kill("trainer 0", signal.SIGCONT)
    # Whether its heartbeat, its question for a lease, its push or the end of a lease hears first is a matter
    # of timing.
    said = ("silent too long", "counts as lost", "is held under epoch", "has another holder by now")
    command.wait(lambda: any(map(command.lines, said)), 15, "trainer 0 to hear of it")
    assert_ends_well(command, examples)
    told = {line for words in said for line in command.lines(words)}
    assert all("trainer 0" in line for line in told)


def test_a_trainer_that_never_wakes_up_does_not_keep_the_run_from_ending(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=SLOWLY)
    command.kill("trainer 1", signal.SIGSTOP)
    assert_ends_well(command, examples)
    assert "for trainer 1 to end, whose work others have done; ended" in command.output


def test_a_run_that_is_stopped_as_a_whole_for_longer_than_all_limits_goes_on(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=SLOWLY)
    all_pids = [process.pid for process in command.processes()]
    for pid in all_pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * SILENCE_S + 2)
    for pid in all_pids:
        os.kill(pid, signal.SIGCONT)
    assert_ends_well(command, examples)
    assert not command.lines("lost")


def test_the_error_of_a_script_is_the_runs_own(start: Start, examples: Path, tmp_path: Path) -> None:
    command = start(
        "launch", "--servers", "2", "--trainers", "2", "--out", tmp_path / "out", SCRIPT, examples,
        tmp_path / "checkpoint", "--fail-at", "0",
    )  # fmt: skip
    assert command.finish(30) == 1
    assert "ZeroDivisionError: planted" in command.output
