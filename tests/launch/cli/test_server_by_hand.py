"""``pslib server``: a user starts one more server for a run, and it leaves when it is told to."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launch.supervisor.discovery import find_cluster
from pslib.cluster import Watcher
from tests.support.processes.counting_runs import (
    SLOWLY,
    Start,
    assert_counted_once,
    launch_counting,
    write_counting_examples,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.soak


def test_a_server_that_somebody_starts_takes_its_share_and_leaves_in_order(
    start: Start, tmp_path: Path
) -> None:
    examples = write_counting_examples(tmp_path / "examples.parquet", 12_000)
    pace = [*SLOWLY, "--epochs", "8"]
    command = launch_counting(start, examples, tmp_path, servers=1, trainers=2, more=pace)
    address, cluster_id = find_cluster(str(tmp_path / "out"), None)
    watcher = Watcher(address, cluster_id)
    asked_for, spare = (
        start("server", "--coordinator", address, "--cluster-id", cluster_id) for _ in range(2)
    )
    try:
        wait_until(
            lambda: watcher.status()["servers"] == 3,
            20,
            lambda: f"three servers:\n{asked_for.output}{spare.output}",
        )
        grown = start("scale", "--servers", "2", tmp_path / "out")
        assert grown.finish(30) == 0, grown.output
        shrunk = start("scale", "--servers", "1", tmp_path / "out")
        assert shrunk.finish(30) == 0, shrunk.output
        members = watcher.status(details=True)["members"]
    finally:
        watcher.close()
    assert "server 1 at " in grown.output
    assert next(one["units"] for one in members if one["role"] == "server") == 4096 + 64
    command.hurry()
    for one in (asked_for, spare):
        assert one.finish(20) == 0, one.output
    assert command.finish(60) == 0, command.output
    assert "starting server" not in command.output
    assert_counted_once(tmp_path / "checkpoint", examples, epochs=8)


def test_a_spare_server_that_dies_ends_nothing(start: Start, tmp_path: Path) -> None:
    examples = write_counting_examples(tmp_path / "examples.parquet", 12_000)
    more = [*SLOWLY, "--epochs", "5"]
    command = launch_counting(start, examples, tmp_path, servers=1, trainers=2, more=more)
    address, cluster_id = find_cluster(str(tmp_path / "out"), None)
    watcher = Watcher(address, cluster_id)
    spare = start("server", "--coordinator", address, "--cluster-id", cluster_id)
    try:
        wait_until(lambda: watcher.status()["servers"] == 2, 20, lambda: f"two servers:\n{spare.output}")
        spare.process.send_signal(signal.SIGKILL)
        wait_until(lambda: watcher.status()["servers"] == 1, 20, "it to count as lost")
        assert watcher.status()["phase"] == "training"
    finally:
        watcher.close()
    command.hurry()
    assert command.finish(60) == 0, command.output
    assert "it owned nothing" in command.output
