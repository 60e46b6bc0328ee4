"""A scorer follows real processes that are killed and scaled: when they are quiet it has their rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pslib.clock import SystemClock
from pslib.errors import PslibError
from pslib.scoring.followed_parameters import FollowedParameters
from pslib.serving.follower import Follower
from pslib.serving.settings import ServeSettings
from pslib.trainer.pipeline.dense import DenseLayout
from pslib.transport.keys import make_keys, write_keys
from tests.support.processes import followed_script
from tests.support.processes.command import ROOT, Command
from tests.support.processes.counting_runs import Start, wait_for_successors
from tests.support.processes.followed_script import FLOATS, KEYS, SPEC
from tests.support.waiting import wait_until

LIMIT_S = 60


def launch(start: Start, folder: Path, *options: str) -> Command:
    """The script in a cluster of two servers, once it pushes."""
    script = Path(followed_script.__file__)
    command = start(
        *("launch", "--servers", "2", "--trainers", "1", "--out", folder / "out", "--restarts", "9"),
        *options, script, folder,
    )  # fmt: skip
    command.wait(lambda: command.lines("first batch"), LIMIT_S, "the script to push")
    return command


@contextmanager
def following(folder: Path, keys: Path | None = None) -> Iterator[FollowedParameters]:
    """A scorer's parameters, which follow the run."""
    key_file = None if keys is None else str(keys)
    follower = Follower(str(folder / "out"), key_file, ServeSettings(follow_s=0.1), SystemClock(), print)
    try:
        parameters = follower.open("", cast(Any, None), SPEC, DenseLayout({"w": (FLOATS,)}))
        follower.start()
        yield parameters
    finally:
        follower.close()


def wait_for_versions(parameters: FollowedParameters, more: int = 3) -> None:
    """Wait for versions: rounds that began after now are whole."""
    enough = parameters.version + more
    wait_until(lambda: parameters.version >= enough, LIMIT_S, "versions")


def differing(scorer: FollowedParameters, rows: np.ndarray, dense: np.ndarray) -> int:
    """Number of rows that a scorer has with other bits; one more if its dense parameters are others."""
    with scorer.reading():
        wrong = (scorer.rows(KEYS).view(np.uint32) != rows.view(np.uint32)).any(axis=1).sum()
        return int(wrong) + (scorer.dense["w"].tobytes() != dense.tobytes())


def assert_converges(folder: Path, command: Command, *scorers: FollowedParameters) -> None:
    """Stop the pushes; each scorer comes to have the bits of the cluster, and the run ends well."""
    (folder / "stop").touch()
    command.wait((folder / "rows.npy").exists, LIMIT_S, "the last rows")
    rows, dense = np.load(folder / "rows.npy"), np.load(folder / "dense.npy")
    assert np.abs(rows).max() > 1, "nothing was trained"
    for scorer in scorers:
        wait_until(
            lambda scorer=scorer: not differing(scorer, rows, dense),
            LIMIT_S,
            lambda scorer=scorer: (
                f"a scorer to converge: {differing(scorer, rows, dense)} rows differ in version "
                f"{scorer.version}\n{command.output}"
            ),
        )
    (folder / "end").touch()
    assert command.finish(LIMIT_S) == 0, command.output


def test_kills_of_servers_trainer_and_coordinator_leave_no_other_rows_behind(
    start: Start, tmp_path: Path
) -> None:
    command = launch(start, tmp_path, "--durability", "log")
    with following(tmp_path) as scorer:
        for victim in ("server 0", "trainer 0", "coordinator", "server 1"):
            wait_for_versions(scorer)
            before = {victim: command.pid_of(victim)}
            command.kill(victim)
            wait_for_successors(command, before)
        wait_for_versions(scorer)
        with following(tmp_path) as late:
            assert_converges(tmp_path, command, scorer, late)


def test_a_scorer_follows_through_a_scale_up_and_down(start: Start, tmp_path: Path) -> None:
    command = launch(start, tmp_path)
    with following(tmp_path) as scorer:
        for servers in (4, 2):
            wait_for_versions(scorer)
            subprocess.run(
                [
                    *(sys.executable, "-P", "-m", "launch.cli.main", "scale"),
                    *("--servers", str(servers), str(tmp_path / "out")),
                ],
                env={"PYTHONPATH": str(ROOT)},
                check=True,
                timeout=LIMIT_S,
            )
        wait_for_versions(scorer)
        assert_converges(tmp_path, command, scorer)


def test_a_reader_s_key_follows_an_encrypted_training_and_no_key_does_not(
    start: Start, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    write_keys(keys, make_keys())
    command = launch(start, tmp_path, "--keys", str(keys))
    with pytest.raises(PslibError), following(tmp_path):
        raise AssertionError("it followed without a key")
    with following(tmp_path, keys / "reader.keys") as scorer:
        wait_for_versions(scorer, 50)  # rows are above 1 by then
        assert_converges(tmp_path, command, scorer)
