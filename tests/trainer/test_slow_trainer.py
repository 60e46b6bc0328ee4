"""Real processes, one of them slow: with ssp no trainer runs further ahead of it than the bound."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.processes.command import Command

SCRIPT = Path(__file__).parents[1] / "support" / "processes" / "slow_script.py"
BOUND, TRAINERS, ROWS = 3, 3, 12_000
LEASE_BATCHES = 47
"""ceil(3000 / 64): what the slow trainer certainly has work for; after it, it may be without."""


def test_no_trainer_runs_further_ahead_of_a_slow_one_than_the_bound(tmp_path: Path) -> None:
    """What the processes count themselves, and what their clocks tell of it."""
    ids = np.arange(ROWS)
    table = pa.table({"label": pa.array(ids % 2, pa.int8()), "id": ids, "shared": ids % 7})
    pq.write_table(table, tmp_path / "examples.parquet", row_group_size=3000)
    command = Command(
        tmp_path, "launch", "--servers", "2", "--trainers", str(TRAINERS), SCRIPT,
        tmp_path / "examples.parquet", tmp_path, str(BOUND),
    )  # fmt: skip
    try:
        assert command.process.wait(100) == 0, command.output
    finally:
        command.clean_up()
    stories = sorted(
        (json.loads(path.read_text()) for path in tmp_path.glob("?.json")), key=lambda story: story["rank"]
    )
    leads = [story["lead"] for story in stories]
    assert max(leads) == BOUND, "the fast ones were held back, and no further than they had to be"
    slow, *fast = (np.array(story["began_s"]) for story in stories)
    assert slow.size >= LEASE_BATCHES
    assert all(later > earlier for earlier, later in pairwise(slow))
    slow = slow[:LEASE_BATCHES]
    for began in fast:  # their clocks start where that of the slow one is: at their index, or above
        begun = began[began < slow[-1]]
        of_slow = np.searchsorted(slow, begun)
        assert (np.arange(begun.size) - of_slow <= BOUND).all(), (slow - slow[0], begun - slow[0])
        assert begun.size > 10
