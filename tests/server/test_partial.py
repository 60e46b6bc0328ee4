"""``recovery: partial``: a killed server alone begins at the last checkpoint, and the others go on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from cython_ext.common.hashing import partition_of
from pslib.config import ClusterConfig
from pslib.table.partition_map import PartitionMap
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import (
    SLOWLY,
    Start,
    counts_of,
    launch_counting,
    train_in_step,
    wait_for_steps,
)

CONFIG = ClusterConfig(servers=2)
PARTIAL = ("--recovery", "partial")


def lost_pushes(command: Command) -> list[int]:
    """Return the number of pushes that each trainer has missed."""
    found = (re.search(r"server 1 came back without (\d+) of", line) for line in command.output.splitlines())
    return [int(match[1]) for match in found if match]


def examples_lost(checkpoint: Path, examples: Path) -> int:
    """Count the examples lost on server 1; on server 0 each one counts once, and nowhere twice."""
    keys, counts = counts_of("id", checkpoint, examples)
    partitions = PartitionMap.even(CONFIG.partition_bits, CONFIG.dense_blocks, ("a", "b")).owners
    on_the_other = partitions[partition_of(keys, CONFIG.partition_bits)] == 0
    assert (counts[on_the_other] == 1).all()
    assert np.isin(counts, (0, 1)).all()
    return int((counts == 0).sum())


@pytest.mark.parametrize("cuts", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_killed_server_begins_at_the_last_checkpoint_and_what_is_lost_is_counted(
    start: Start, examples: Path, tmp_path: Path, cuts: bool
) -> None:
    saving = ["--cuts", str(tmp_path / "cuts"), "--cut-every-s", "0.3"] if cuts else []
    command = launch_counting(start, examples, tmp_path, more=[*SLOWLY, *saving], options=PARTIAL)
    if cuts:
        command.wait_for("saved ", 40)
    else:
        wait_for_steps(command)
    command.kill("server 1")
    command.wait_for("server 1 comes back without what it knew", 40)
    command.hurry()
    assert command.finish(90) == 0, command.output
    (line,) = command.lines("server 1 comes back without what it knew")
    assert ("begin at checkpoint" if cuts else "begin at their first values: there is no checkpoint") in line
    lost, pushes = examples_lost(tmp_path / "checkpoint", examples), lost_pushes(command)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["pushes_missing"] == sum(pushes)
    assert lost <= 64 * sum(pushes)
    assert cuts or min([lost, *pushes]) > 0
    assert "Traceback" not in command.output


def test_a_run_in_step_ends_when_a_server_has_lost_what_it_knew(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = train_in_step(start, examples, tmp_path, recovery="partial")
    command.kill("server 1")
    assert command.finish(60) == 69, command.output
    (line,) = command.lines("with consistency sync no step can go on without it")
    assert "server 1 comes back without what it knew" in line
    assert "start again from their first values: there is no checkpoint" in line
    assert "Traceback" not in command.output
