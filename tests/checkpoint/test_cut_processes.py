"""A training is saved while it goes on; all its processes are killed; another cluster goes on from it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import psutil

from pslib.checkpoint import newest
from tests.support.processes.counting_runs import ROWS, SLOWLY, Start, assert_counted_once, launch_counting


def test_after_kill_9_of_everything_each_example_counts_once_from_the_last_checkpoint_on(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    """Two trainers and two servers are killed with their launcher; three servers and two trainers go on."""
    cuts = tmp_path / "cuts"
    saving = ["--cuts", str(cuts), "--cut-every-s", "0.3", "--incremental", "4", *SLOWLY]
    first = launch_counting(start, examples, tmp_path, more=saving)
    for number in ("2", "3"):
        first.wait_for(f"checkpoint-00000{number} (", 40)
    for process in first.processes():
        with suppress(psutil.NoSuchProcess):  # the others end too once their launcher is gone
            process.kill()
    first.process.wait(10)
    lines = first.lines("saved ")
    assert lines
    pauses = [float(re.search(r"pause (\d+\.\d+) s", line)[1]) for line in lines]  # type: ignore[index]
    assert max(pauses) < 5.0
    table = json.loads((Path(newest(str(cuts))) / "manifest.json").read_text())["cut"]["table"]
    done = sum(stop - first for first, stop in table["leases"]["done"])
    assert done < table["leases"]["count"]

    out = tmp_path / "again"
    out.mkdir()
    second = launch_counting(start, examples, out, servers=3, more=["--load", str(cuts), "--cuts", str(cuts)])
    assert second.finish(60) == 0, second.output
    assert_counted_once(out / "checkpoint", examples)
    assert ROWS % 512 or table["leases"]["count"] == ROWS // 512
