"""Sharing a core: short turns of a thread, and giving way."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cython_ext.common.cores import CoreTurns, turn_s
from pslib.server.shard_thread import TURN_S

HEEDS = pytest.mark.skipif(
    sys.platform != "linux" or tuple(int(part) for part in platform.release().split(".")[:2]) < (6, 12),
    reason="only Linux from 6.12 on lets a thread say how long its turns are; that no thread gives way "
    "elsewhere is shown everywhere by test_a_thread_gives_way_only_where_its_turns_are_what_it_has_asked_for",
)
LINUX = pytest.mark.skipif(
    sys.platform != "linux",
    reason="scheduling policies and the niceness of one thread are Linux's alone; elsewhere none are "
    "touched, as test_a_thread_gives_way_only_where_its_turns_are_what_it_has_asked_for shows everywhere",
)
ENOUGH = 20


def in_thread(work: Callable[[], Any]) -> Any:
    """Return the result of some work in a thread of its own, whose turns end with it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def work_for(seconds: float) -> None:
    """Use a core for so long."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def test_a_thread_gives_way_only_where_its_turns_are_what_it_has_asked_for() -> None:
    def told() -> tuple[bool, float | None, int]:
        turns = CoreTurns(TURN_S)
        work_for(0.01)
        turns.give_way()
        return turns.taken, turn_s(), turns.given_way

    before = turn_s()
    taken, seconds, given_way = in_thread(told)
    assert taken == (seconds == TURN_S)
    assert given_way == taken
    assert turn_s() == before, "they are the calling thread's alone"


@LINUX
def test_a_thread_with_a_policy_of_its_own_keeps_it_and_does_not_give_way() -> None:
    def told() -> tuple[bool, int, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        turns = CoreTurns(TURN_S)
        work_for(0.01)
        turns.give_way()
        return turns.taken, os.sched_getscheduler(0), turns.given_way

    assert in_thread(told) == (False, os.SCHED_BATCH, 0)


@LINUX
def test_niceness_is_kept() -> None:
    def told() -> tuple[int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        CoreTurns(TURN_S)
        return before, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert in_thread(told) == (5, 5)


@HEEDS
def test_a_thread_gives_way_at_the_end_of_a_turn_and_not_before() -> None:
    def given_way() -> list[int]:
        turns, seen = CoreTurns(0.05), []
        for seconds in (0.0, 0.01, 0.04, 0.0, 0.01, 0.04):
            work_for(seconds)
            turns.give_way()
            seen.append(turns.given_way)
        return seen

    assert in_thread(given_way) == [0, 0, 1, 1, 1, 2]


def test_turns_that_have_ended_are_as_long_as_before_and_no_thread_gives_way_in_them() -> None:
    def told() -> tuple[float | None, int, bool]:
        turns = CoreTurns(TURN_S)
        turns.end()
        work_for(0.01)
        turns.give_way()
        return turn_s(), turns.given_way, turns.taken

    assert in_thread(told) == (in_thread(turn_s), 0, False)


@HEEDS
def test_turns_that_the_system_makes_shorter_are_not_taken() -> None:
    assert not in_thread(lambda: CoreTurns(1.0).taken)


def switches() -> int:
    """Return the number of involuntary context switches of the calling thread."""
    with open(f"/proc/self/task/{threading.get_native_id()}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("nonvoluntary"))


@HEEDS
def test_giving_way_leaves_the_core_to_the_thread_that_wants_it() -> None:
    core = min(os.sched_getaffinity(0))

    def left() -> int:
        os.sched_setaffinity(0, [core])
        turns, before = CoreTurns(TURN_S), switches()
        while turns.given_way < 100 * ENOUGH and switches() - before < ENOUGH:
            work_for(TURN_S)
            turns.give_way()
        return switches() - before

    spin = f"import os\nos.sched_setaffinity(0, [{core}])\nprint('spins', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()  # it wants all of the core
        try:
            assert in_thread(left) >= ENOUGH
        finally:
            other.kill()
