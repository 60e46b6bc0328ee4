"""Clocks: what a process counts of the time in which it could do nothing."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.clock import STALL_S, AwakeClock

ROOT = Path(__file__).parents[1]


@dataclass
class HandClock:
    """Goes on when a test says so."""

    at_s: float = 1e6

    def now_s(self) -> float:
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds


@given(st.lists(st.floats(0, 100 * STALL_S), max_size=30))
def test_an_awake_clock_counts_each_pause_between_two_looks_up_to_a_limit(pauses: list[float]) -> None:
    machine = HandClock()
    clock = AwakeClock(machine)
    began_s = clock.now_s()
    for pause_s in pauses:
        machine.sleep_s(pause_s)
        clock.now_s()
    assert clock.now_s() - began_s == pytest.approx(
        sum(min(pause_s, STALL_S) for pause_s in pauses), abs=1e-6
    )


def test_an_awake_clock_never_goes_back() -> None:
    machine = HandClock()
    clock = AwakeClock(machine)
    looks = [clock.now_s()]
    for pause_s in (0.2, 3600.0, 0.0, 0.2, 7.0, 0.2):
        machine.sleep_s(pause_s)
        looks.append(clock.now_s())
    assert looks == sorted(looks)


STOPPED_S = 5.0
SCRIPT = """
import sys, time
import numpy as np
from pslib.config import Timing
from pslib.table.tables import PartSpec, TableSpec
from tests.clusters import cluster_of

timing = Timing(heartbeat_s=0.1, silence_s=2.0, request_s=4.0)
with cluster_of(servers=2, timing=timing) as running:
    client = running.join().client
    client.setup([TableSpec("t", (PartSpec("v", 4),))])
    keys = np.arange(100, dtype=np.uint64)
    print("ready", flush=True)
    for _ in range(40):
        client.push({"t": (keys, np.ones((100, 4), np.float32))}).wait()
        time.sleep(0.05)
    print(client.stats()["pushes_applied"], flush=True)
"""


@pytest.mark.skipif(
    not hasattr(signal, "SIGSTOP"), reason="this system can't stop a process and let it go on"
)
def test_a_script_that_was_stopped_for_longer_than_all_limits_goes_on() -> None:
    """Ctrl-Z and fg: nobody in a process that stood still was silent."""
    script = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert script.stdout is not None
    try:
        assert script.stdout.readline() == "ready\n"
        os.kill(script.pid, signal.SIGSTOP)
        time.sleep(
            STOPPED_S
        )  # longer than a member may be silent, than a trainer waits, than a request may take
        os.kill(script.pid, signal.SIGCONT)
        assert script.communicate(timeout=120)[0] == "40\n"
        assert script.returncode == 0
    finally:
        script.kill()
        script.communicate()
