"""Forgetting and going on with real processes and logs: no replay brings back what was forgotten."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cython_ext.common.hashing import hash_ints
from launch.cli.main import main
from tests.support.processes.counting_runs import ROWS, SCRIPT, Start, counted
from tests.support.processes.counting_script import DENSE, SCHEMA, TABLE
from tests.support.waiting import WAIT_S, wait_until


def bytes_of_logs(out: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((out / "log").rglob("shard-*/*.log")))


def test_a_run_with_logs_forgets_is_asked_to_leave_and_resumes_without_what_it_has_forgotten(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    """Every id is trained once, so those that a log holds do not come again."""
    out, script = tmp_path / "out", [SCRIPT, examples, tmp_path / "checkpoint"]
    options = ["launch", "--servers", "2", "--trainers", "2", "--out", out, "--durability", "log"]
    command = start(*options, *script, "--pause-s", "0.15")
    wait_until(
        lambda: len(command.lines("first batch")) == 2, 40, lambda: f"first batches:\n{command.output}"
    )
    field = next(one for one in SCHEMA.sparse if one.name == "id")
    every = hash_ints(np.arange(ROWS) * 7 + 1, field.salt)
    some: list[int] = []

    def are_in_logs() -> bool:
        held = bytes_of_logs(out)
        some[:] = [key for key in every.tolist() if key.to_bytes(8, "little") in held][:20]
        return len(some) == 20

    wait_until(are_in_logs, WAIT_S, "20 keys in the logs")
    assert main(["forget", *map(str, some), "--table", TABLE, "--cluster", str(out)]) == 0
    held = bytes_of_logs(out)
    assert sum(key.to_bytes(8, "little") in held for key in some) == 0
    command.process.terminate()
    assert command.finish(40) == 75, command.output
    assert not (tmp_path / "checkpoint").exists()
    again = start(*options, "--resume", *script)
    assert again.finish(60) == 0, again.output
    rows, dense = counted(tmp_path / "checkpoint")
    assert not rows.keys() & set(some)
    left = set(every.tolist()) - set(some)
    assert {rows.get(key) for key in left} == {1.0}
    assert dense == [float(ROWS)] * DENSE
    assert "Traceback" not in again.output
