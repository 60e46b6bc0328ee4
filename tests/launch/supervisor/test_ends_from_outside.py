"""Runs ended from outside: by Ctrl-C, SIGTERM, a terminal that closes or kill -9 of their launcher."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from launch.supervisor.graceful_stop import EndSignals
from tests.support.processes.standin_launch import processes_of, run_standins, start_launcher
from tests.support.waiting import wait_until

ALL_READY = {"coordinator": "ready;sleep", "server": "ready;sleep"}


def test_ctrl_c_ends_all_processes_and_their_own_ones_with_exit_code_130(tmp_path):
    launcher = start_launcher(tmp_path, {**ALL_READY, "trainer": "spawn;stubborn;ready;sleep"})
    assert len(processes_of(tmp_path)) >= 7
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 130
    assert "got SIGINT: all leave in order, trainers within 1 s; again: at once\n" in output
    wait_until(lambda: not processes_of(tmp_path), 5, "all processes to end")


def test_sigterm_ends_all_with_exit_code_75_and_a_stubborn_one_is_killed(tmp_path):
    launcher = start_launcher(tmp_path, {**ALL_READY, "trainer": "stubborn;ready;sleep"})
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 75
    wait_until(lambda: not processes_of(tmp_path), 5, "all processes to end")


@pytest.mark.parametrize("second", [signal.SIGHUP, signal.SIGTERM])
def test_a_terminal_that_closes_asks_all_to_leave_as_sigterm_does(tmp_path, second):
    """Once, though the kernel and the shell both say so, or the end of a session does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # of tests that run under nohup
    try:
        launcher = start_launcher(tmp_path, {**ALL_READY, "trainer": "stubborn;ready;sleep"})
    finally:
        signal.signal(signal.SIGHUP, before)
    for number in (signal.SIGHUP, second):
        launcher.send_signal(number)
        time.sleep(0.3)
    output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 75
    assert "got SIGHUP: all leave in order, trainers within 1 s; again: at once\n" in output
    wait_until(lambda: not processes_of(tmp_path), 5, "all processes to end")


def test_sigterm_after_sighup_hurries_nobody_unless_it_comes_later():
    """A session that ends sends both."""
    hurried: list[float] = []
    now_s = 10.0
    signals = EndSignals(SimpleNamespace(now_s=lambda: now_s), lambda: hurried.append(now_s))
    signals.hear(signal.SIGHUP, None)
    now_s = 11.5
    signals.hear(signal.SIGTERM, None)
    assert (signals.number, hurried) == (signal.SIGHUP, [])
    now_s = 13.0
    signals.hear(signal.SIGTERM, None)
    assert (signals.number, hurried) == (signal.SIGHUP, [13.0])


@pytest.mark.parametrize(
    ("first", "second", "pause_s", "code"),
    [
        *((signal.SIGTERM, signal.SIGTERM, pause_s, 75) for pause_s in (0.0, 0.002, 0.02, 0.15, 0.5)),
        *((signal.SIGINT, signal.SIGINT, pause_s, 130) for pause_s in (0.0, 0.02, 0.15)),
        # Of two that wait for a process at once the kernel says no order.
        (signal.SIGTERM, signal.SIGINT, 1.0, 75),
        (signal.SIGHUP, signal.SIGINT, 1.0, 75),
        (signal.SIGINT, signal.SIGTERM, 1.0, 130),
    ],
)
def test_two_signals_end_a_run_at_once_whatever_time_is_between_them(tmp_path, first, second, pause_s, code):
    """The code is that of the first one, and the launcher's own kills are not told as losses."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        launcher = start_launcher(tmp_path, {**ALL_READY, "trainer": "stubborn;ready;sleep"})
    finally:
        signal.signal(signal.SIGHUP, before)
    launcher.send_signal(first)
    time.sleep(pause_s)
    launcher.send_signal(second)
    output, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == code, output
    assert "killed by" not in output
    assert "lost" not in output
    if pause_s >= 0.15:  # two at once may come as one, which is waited for
        assert f"got {first.name} and another signal: ending 5 processes\n" in output
    wait_until(lambda: not processes_of(tmp_path), 5, "all processes to end")


def test_a_run_under_nohup_outlives_its_terminal(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    said = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGHUP))
    try:
        said.start()
        outcome, _ = run_standins(tmp_path, {"trainer": "sleep 1;result a;over"})
    finally:
        said.join()
        signal.signal(signal.SIGHUP, before)
    assert outcome.exit_code == 0


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path):
    launcher = start_launcher(tmp_path, {**ALL_READY, "trainer": "spawn;stubborn;ready;sleep"})
    stopped = next(pid for pid, line in processes_of(tmp_path).items() if " server " in line)
    os.kill(stopped, signal.SIGSTOP)
    launcher.kill()
    launcher.communicate(timeout=60)
    wait_until(lambda: not processes_of(tmp_path), 10, "all processes to end")
