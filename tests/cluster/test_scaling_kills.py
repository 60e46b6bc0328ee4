"""Servers are killed while units move to new ones: every push is in once, without help."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes.command import ROOT
from tests.support.processes.counting_runs import (
    SLOWLY,
    Start,
    assert_counted_once,
    launch_counting,
    write_counting_examples,
)

LOGGED = ["--durability", "log", "--restarts", "9"]
EPOCHS = 2


def scale(folder: Path, servers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "launch.cli.main", "scale", "--servers", str(servers), str(folder)]
    return subprocess.Popen(
        command, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.soak
def test_sources_and_targets_and_the_coordinator_may_die_while_units_move(
    start: Start, tmp_path: Path
) -> None:
    examples = write_counting_examples(tmp_path / "examples.parquet")
    pace = [*SLOWLY, "--epochs", str(EPOCHS)]
    command = launch_counting(start, examples, tmp_path, options=LOGGED, more=pace)
    random_ = random.Random(5)
    for servers, victims in ((4, ("server 0", "server 2")), (2, ("server 3", "coordinator"))):
        scaling = scale(tmp_path / "out", servers)
        for victim in victims:
            command.pid_of(victim)  # it has been started
            time.sleep(random_.uniform(0.2, 1.2))
            command.kill(victim, signal.SIGKILL)
        said = scaling.communicate(timeout=60)[0]
        assert scaling.returncode == 0, said + command.output
    command.hurry()
    assert command.finish(60) == 0, command.output
    assert_counted_once(tmp_path / "checkpoint", examples, epochs=EPOCHS)
    assert "Traceback" not in command.output
