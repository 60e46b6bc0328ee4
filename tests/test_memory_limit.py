"""The memory limit of a real server process: it ends the run in one line, or rows leave; never the kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command import Command
from tests.waiting import wait_until

ROWS, DIM = 120_000, 64
LIMIT_BYTES = 32 << 20
PROCESS_BYTES = 192 << 20
"""Python with NumPy, pyarrow and ZeroMQ (about 120 MiB), messages on their way, copies of a batch's rows."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every example has an id of its own: 120,000 rows of 540 bytes, twice the limit."""
    ids = np.arange(ROWS)
    path = tmp_path_factory.mktemp("limit") / "examples.parquet"
    pq.write_table(pa.table({"label": pa.array(ids % 2, pa.int8()), "id": pa.array(ids)}), path)
    return path


def run(folder: Path, examples: Path, table: dict[str, object]) -> Iterator[Command]:
    job = {
        "data": {"train": str(examples), "schema": {"label": "label", "sparse": ["id"]}},
        "model": {"name": "fm", "dim": DIM},
        "training": {"batch_rows": 1024, "warmup_batches": 0},
        "table": table,
        "cluster": {"servers": 1, "trainers": 1, "partition_bits": 6, "server_memory_bytes": LIMIT_BYTES},
        "out": str(folder / "out"),
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    command = Command(folder, "train", path, "--quiet")
    try:
        yield command
    finally:
        command.clean_up()


def peak_bytes(command: Command) -> int:
    """The most memory that the server had."""
    wait_until(lambda: command.pid_of("server 0") > 0 or command.process.poll() is not None, 40, "a server")
    sizes: list[int] = []

    def look() -> bool:
        try:
            sizes.append(psutil.Process(command.pid_of("server 0")).memory_info().rss)
        except psutil.NoSuchProcess:
            return True
        return command.process.poll() is not None

    wait_until(look, 60, lambda: f"the run to end:\n{command.output}")
    return max(sizes)


def test_a_server_at_its_limit_ends_the_run_with_one_line_and_stays_within_it(
    tmp_path: Path, examples: Path
) -> None:
    for command in run(tmp_path, examples, {}):
        peak = peak_bytes(command)
        assert command.finish(20) == 69
        lines = [line for line in command.output.splitlines() if "memory limit" in line]
        assert lines, command.output
        assert f"of {LIMIT_BYTES:,} bytes" in lines[0]
        assert "raise server_memory_bytes" in lines[0]
        assert "Traceback" not in command.output
        assert peak < LIMIT_BYTES + PROCESS_BYTES


def test_a_server_that_lets_old_rows_go_trains_to_the_end_within_its_limit(
    tmp_path: Path, examples: Path
) -> None:
    for command in run(tmp_path, examples, {"when_full": "oldest"}):
        peak = peak_bytes(command)
        assert command.finish(20) == 0, command.output
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary["evicted_share"] > 20_000
        assert summary["rows"] + summary["evicted_share"] == ROWS
        assert summary["memory_bytes"] <= summary["memory_limit_bytes"] == LIMIT_BYTES
        assert peak < LIMIT_BYTES + PROCESS_BYTES
