"""A crash at any byte leaves the state after some push, with everything that had been promised."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pslib.server.durable_ack import DurableAck
from pslib.update_log import RollingLog
from pslib.update_log.shard_log import ShardLog, recover
from tests.support.simulated.files import SimulatedDisk
from tests.update_log.test_replay import ABOUT, TABLES, Run, fingerprint

Snapshots = list[dict[str, Any]]


def pushed(run: Run, count: int) -> Snapshots:
    """A few pushes, and what the shard was after each record."""
    snapshots = [fingerprint(run.shard)] * (run.log.log.last + 1)
    for _ in range(count):
        run.push()
        snapshots += [fingerprint(run.shard)] * (run.log.log.last + 1 - len(snapshots))
    return snapshots


def recovered(disk: SimulatedDisk, disk_mode: bool = False) -> tuple[RollingLog, dict[str, Any]]:
    log = RollingLog(disk.files("log"), ABOUT, disk=disk_mode, segment_bytes=4096)
    shard = Run.blank()
    recover(log, shard, lambda *_: None)
    return log, fingerprint(shard)


def test_killed_at_any_byte_of_the_last_records_the_state_is_that_after_the_last_whole_one() -> None:
    run = Run(TABLES["Adam"], 3, log_bytes=1 << 40)
    snapshots = pushed(run, 6)
    name = list(run.disk.folders["log"])[-1]
    whole = bytes(run.disk.folders["log"][name].content)
    seen = set()
    for size in range(max(0, len(whole) - 2500), len(whole) + 1):
        twin = SimulatedDisk()
        for other, one in run.disk.folders["log"].items():
            twin.files("log").append(other, [whole[:size] if other == name else bytes(one.content)])
        log = RollingLog(twin.files("log"), ABOUT, segment_bytes=4096)
        if log.last not in seen or size % 50 == 0:  # a cut log is the same whatever was cut off
            assert recovered(twin)[1] == snapshots[log.last]
        seen.add(log.last)
    assert run.log.log.last in seen
    assert len(seen) >= 2


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), syncs=st.lists(st.booleans(), min_size=1, max_size=12))
def test_without_power_everything_synced_is_there_and_the_state_is_that_after_some_push(
    seed: int, syncs: list[bool]
) -> None:
    run = Run(TABLES["Adagrad"], seed, log_bytes=1 << 40)
    run.disk = SimulatedDisk(seed)
    run.shard = run.blank()
    log = RollingLog(run.disk.files("log"), ABOUT, disk=True, segment_bytes=4096)
    run.log = ShardLog(log, run.shard, 1 << 40)
    run.shard.own(np.arange(19))
    run.shard.setup(Run.setup(TABLES["Adagrad"]))
    log.sync()
    snapshots = [fingerprint(run.shard)] * (log.last + 1)
    for sync in syncs:
        run.push()
        snapshots += [fingerprint(run.shard)] * (log.last + 1 - len(snapshots))
        if sync:
            log.sync()
    promised = log.durable
    run.disk.lose_power()
    after, state = recovered(run.disk, disk_mode=True)
    assert promised <= after.last
    assert state == snapshots[after.last]


class Log:
    """Log as an acknowledgement gate sees it."""

    def __init__(self) -> None:
        self.last = self.durable = 0


def test_answers_leave_when_what_they_say_is_durable_in_their_order() -> None:
    first, second = Log(), Log()
    asked: list[bool] = []
    left: list[str] = []
    gate = DurableAck([first, second], lambda: asked.append(True))
    gate.pass_when_durable((0, 1), lambda: left.append("nothing to wait for"))
    first.last = 3
    gate.pass_when_durable((0,), lambda: left.append("3"))
    first.last = second.last = 4
    gate.pass_when_durable((0, 1), lambda: left.append("4"))
    gate.pass_when_durable((1,), lambda: left.append("copy of 4"))
    assert left == ["nothing to wait for"]
    assert len(asked) == 3
    first.durable = 4
    gate.look()
    assert left[1:] == ["3"]
    second.durable = 4
    gate.look()
    assert left[2:] == ["4", "copy of 4"]
    assert not len(gate)
