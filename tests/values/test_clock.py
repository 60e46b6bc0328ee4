"""Clocks: what a process counts of the time in which it could do nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslib.client.membership import MemberHandle, join
from pslib.client.pending import Pending
from pslib.clock import STALL_S, AwakeClock
from pslib.config import ClusterConfig, Timing
from pslib.errors import WaitTimeoutError
from pslib.wire.fields import Message
from pslib.wire.messages import Registered
from tests.support.hand_clock import HandClock

ROOT = Path(__file__).parents[2]


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


class Waiting:
    """An endpoint told so often that a process is awaited; the first time it was stopped meanwhile."""

    def __init__(self, questions: int, stopped_s: float) -> None:
        self.machine, self.timing = HandClock(), Timing()
        self.clock = AwakeClock(self.machine)
        self._questions, self._stopped_s = questions, stopped_s

    def ask(self, _peer: str, _message: Message, _patience_s: float) -> Pending[Message]:
        self.machine.sleep_s(self._stopped_s)
        self._stopped_s = 0.0
        self._questions -= 1
        ready, config = self._questions <= 0, ClusterConfig(partition_bits=4, dense_blocks=1)
        owners = np.zeros(17 if ready else 0, np.uint16)
        answer: Pending[Message] = Pending("a registration")
        answer.succeed(Registered(3, ready, "server 1", config.to_dict(), 1, ["tcp://a:1"] * ready, owners))
        return answer


def test_a_process_that_was_stopped_while_it_waits_for_others_to_join_has_not_waited() -> None:
    endpoint: Any = Waiting(questions=9, stopped_s=3600.0)
    assert join(MemberHandle(endpoint, "tcp://c:1", "trainer", ""), start_s=60.0).rank == 3


def test_a_process_that_waits_for_a_server_that_never_joins_gives_up_and_names_it() -> None:
    endpoint: Any = Waiting(questions=10**9, stopped_s=3600.0)
    with pytest.raises(WaitTimeoutError, match="waited 60 s for server 1; look at their logs"):
        join(MemberHandle(endpoint, "tcp://c:1", "trainer", ""), start_s=60.0)
    assert 3600 + 60 < endpoint.machine.at_s - HandClock.at_s < 3600 + 60 / STALL_S * 2


STOPPED_S = 5.0
SCRIPT = """
import sys, time
import numpy as np
from pslib.config import Timing
from pslib.table.tables import PartSpec, TableSpec
from tests.support.clusters import cluster_of

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


def test_a_script_that_was_stopped_for_longer_than_all_limits_goes_on() -> None:
    """Ctrl-Z and fg: no peer was silent to a process that stood still."""
    script = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert script.stdout is not None
    try:
        assert script.stdout.readline() == "ready\n"
        os.kill(script.pid, signal.SIGSTOP)
        # longer than a member may be silent, than a trainer waits, than a request may take
        time.sleep(STOPPED_S)
        os.kill(script.pid, signal.SIGCONT)
        assert script.communicate(timeout=120)[0] == "40\n"
        assert script.returncode == 0
    finally:
        script.kill()
        script.communicate()
