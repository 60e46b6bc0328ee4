"""Lines of processes: which of them the user sees."""

from __future__ import annotations

import pytest

from launch.supervisor.run_spec import Task
from launch.supervisor.worker_output import WorkerOutput
from pslib.process.shutdown import ACKNOWLEDGED, ASKED


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
    output.hear(Task("trainer", 0), f"pslib: {line}")
    output.take_in()
    assert shown == ([f"trainer 0: {line}"] if is_shown else [])
