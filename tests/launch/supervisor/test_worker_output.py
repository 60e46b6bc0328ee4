"""Lines of processes: which of them the user sees."""

from __future__ import annotations

import pytest

from launch.supervisor.run_spec import Task
from launch.supervisor.worker_output import WorkerOutput
from launch.worker.log_lines import read_lines
from pslib.process.shutdown import ACKNOWLEDGED, ASKED


def test_lines_that_a_process_has_in_its_own_log_are_told_from_others() -> None:
    said: list[str] = []
    shown: list[str] = []
    output = WorkerOutput(
        echo=False,
        trainers=2,
        say=said.append,
        show=lambda task, entry: shown.append(f"{task.name}: {entry.message}"),
    )
    for number in range(2):
        output.hear(Task("trainer", number), *read_lines("pslib: a bad row"))
    output.take_in()
    output.tell_events({"events": ["saved runs/a", "a bad row"]}, 0.0)
    output.tell_events({"events": ["saved runs/a"]}, 1.0)
    assert (said, shown) == (["saved runs/a"], ["trainer 0: a bad row"])


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        (ASKED, False),
        (ACKNOWLEDGED, False),
        (f"{ASKED}: 2 pushes are not acknowledged, and its leases go back", True),
        (f"{ASKED}: /data/notes.parquet: read error", True),
        (f"{ASKED}: the connection to the store is closed", True),
    ],
)
def test_of_trainers_that_leave_as_they_were_asked_to_only_a_loss_is_shown(line: str, is_shown: bool) -> None:
    shown: list[str] = []
    output = WorkerOutput(echo=False, trainers=1, say=shown.append)
    output.leaving = True
    output.hear(Task("trainer", 0), *read_lines(f"pslib: {line}"))
    output.take_in()
    assert shown == ([f"trainer 0: {line}"] if is_shown else [])
