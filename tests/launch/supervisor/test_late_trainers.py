"""Trainers that are started again as the work ends: the run ends all the same, and promises nothing."""

import re
import time

from launch.supervisor import supervisor
from tests.support.processes.standin_launch import FixedStatus, run_standins

STATUS = {"phase": "training"}


class Left(FixedStatus):
    """Status in which every ready trainer has left; makes a file once the launcher has seen that."""

    def __init__(self, folder):
        super().__init__(STATUS)
        self._folder, self._told = folder, False

    def status(self):
        if self._told:  # and the launcher that asked has it, for it asks again
            (self._folder / "heard").touch()
        pids = [path.name.removeprefix("ready-") for path in self._folder.glob("ready-*")]
        self._told = bool(pids)
        return STATUS | {"trainers_left": [f"pid {pid} on host" for pid in pids]}


def run_with_a_successor(folder, does, other="wait back;over"):
    """Trainer 0 dies at once, its successor ``does``, trainer 1 the ``other``: outcome, lines, seconds."""
    begin_s = time.monotonic()
    behaviours = {
        "coordinator": "note coordinator;wait",
        "trainer 0": f"first die;touch back;{does}",
        "trainer 1": other,
    }
    outcome, said = run_standins(folder, behaviours, trainers=2, restarts=3, watcher=Left(folder))
    return outcome, said, time.monotonic() - begin_s


def test_a_trainer_that_is_started_again_as_the_work_ends_does_not_keep_the_run_from_ending(
    tmp_path, monkeypatch
):
    """The successor would look for the coordinator, which has left, for a minute."""
    monkeypatch.setattr(supervisor, "LOST_S", 1.0)
    outcome, said, _seconds = run_with_a_successor(tmp_path, "sleep")
    assert outcome.exit_code == 0
    assert "started again in 0.5 s (1 of 3)" in said[0]
    (line,) = said[1:]
    assert re.fullmatch(r"waiting \d+ s for trainer 0 to end, whose work others have done; ended", line)


def test_a_successor_that_has_left_in_order_may_go_on_with_its_script(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LOST_S", 3.0)
    outcome, said, seconds = run_with_a_successor(tmp_path, "ready;wait heard;over;sleep 6", other="wait")
    assert outcome.exit_code == 0
    assert seconds > 6.0
    assert len(said) == 1


def test_nobody_is_promised_another_start_when_the_work_is_done(tmp_path):
    outcome, said, _seconds = run_with_a_successor(tmp_path, "outlive coordinator;exit 69")
    assert outcome.exit_code == 0
    assert sum("started again" in line for line in said) == 1
