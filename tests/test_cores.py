"""How a thread shares its core: short turns, and giving way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cython_ext.cores import give_way, take_short_turns, turn_s
from pslib.server.shard_thread import TURN_S

LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="Linux alone tells and is told; elsewhere: False, None"
)
ENOUGH = 20


def in_thread(work: Callable[[], Any]) -> Any:
    """What some work gives in a thread of its own, whose turns end with it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@LINUX
def test_short_turns_are_the_calling_threads_alone() -> None:
    def told() -> tuple[bool, float | None]:
        return take_short_turns(TURN_S), turn_s()

    before = turn_s()
    done, seconds = in_thread(told)
    assert done
    assert seconds in (TURN_S, 0.0), "Linux before 6.12 says 0"
    assert turn_s() == before


@LINUX
def test_a_thread_with_a_policy_of_its_own_keeps_it() -> None:
    def told() -> tuple[bool, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        return take_short_turns(TURN_S), os.sched_getscheduler(0)

    assert in_thread(told) == (False, os.SCHED_BATCH)


@LINUX
def test_niceness_is_kept() -> None:
    def told() -> tuple[int, bool, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        done = take_short_turns(TURN_S)
        return before, done, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert in_thread(told) == (5, True, 5)


def switches() -> int:
    """How often the calling thread has been left for another one while it could go on."""
    with open(f"/proc/self/task/{threading.get_native_id()}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("nonvoluntary"))


@LINUX
def test_giving_way_leaves_the_core_to_who_wants_it() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, [{core}])\nprint('spins', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()

        def given_way() -> int:
            os.sched_setaffinity(0, [core])
            take_short_turns(TURN_S)
            before = switches()
            for _ in range(10_000):
                give_way()
                if switches() - before >= ENOUGH:
                    break
            return switches() - before

        try:
            assert in_thread(given_way) >= ENOUGH
        finally:
            other.kill()
