"""The memory limit of a real server process: it ends the run in one line, or rows leave; never the kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.machine.sanitizer import LIMITS_MEMORY
from tests.support.processes.command import Command
from tests.support.waiting import wait_until

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


def run(folder: Path, examples: Path, table: dict[str, object], **cluster: object) -> Iterator[Command]:
    job = {
        "data": {"train": str(examples), "schema": {"label": "label", "sparse": ["id"]}},
        "model": {"name": "fm", "dim": DIM},
        "training": {"batch_rows": 1024, "warmup_batches": 0},
        "table": table,
        "cluster": {
            "servers": 1,
            "trainers": 1,
            "partition_bits": 6,
            "server_memory_bytes": LIMIT_BYTES,
            **cluster,
        },
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


@LIMITS_MEMORY
def test_a_server_at_its_limit_ends_the_run_with_one_line_and_stays_within_it(
    tmp_path: Path, examples: Path
) -> None:
    for command in run(tmp_path, examples, {}):
        peak = peak_bytes(command)
        assert command.finish(20) == 69
        lines = [line for line in command.output.splitlines() if "memory limit" in line]
        assert len(lines) == 1, command.output
        assert not command.lines("exit code"), command.output
        assert f"of {LIMIT_BYTES:,} bytes" in lines[0]
        assert "raise server_memory_bytes" in lines[0]
        assert "Traceback" not in command.output
        assert peak < LIMIT_BYTES + PROCESS_BYTES


@pytest.mark.parametrize("cluster", [{"durability": "log"}, {"recovery": "rollback"}])
def test_a_run_at_its_limit_is_not_begun_again_by_what_begins_others_again(
    tmp_path: Path, examples: Path, cluster: dict[str, object]
) -> None:
    """Neither its trainer, nor its server from the log, nor all of them at a checkpoint."""
    for command in run(tmp_path, examples, {}, **cluster):
        assert command.finish(60) == 69, command.output
        assert len(command.lines("memory limit")) == 1, command.output
        assert not command.lines("again in"), command.output
        assert not command.lines("begin again"), command.output
        assert not command.lines("lost"), command.output
        assert bool(command.lines("go on, when there is room, with: pslib train")) == (
            "durability" in cluster
        )


SCRIPT = """
import time
import numpy as np
from pslib import SGD, Constant, PartSpec, TableSpec, connect

with connect() as cluster:
    client = cluster.client
    client.setup([TableSpec("t", (PartSpec("w", 64, SGD(1.0), Constant(0.0)),))])
    if cluster.rank:
        time.sleep(600)
    for first in range(0, 1 << 20, 1024):
        keys = np.arange(first, first + 1024, dtype=np.uint64)
        client.push({"t": (keys, np.ones((1024, 64), np.float32))}).wait()
"""


def test_a_trainer_at_the_limit_of_a_server_ends_the_run_at_once_though_others_could_go_on(
    tmp_path: Path,
) -> None:
    """The trainer was restarted, and refused, until its restarts were used up; the others stayed behind."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = Command(
        tmp_path, "launch", "--quiet", "--trainers", "2", "--server-memory-bytes", str(LIMIT_BYTES),
        "--durability", "log", "--out", tmp_path / "out", script,
    )  # fmt: skip
    try:
        assert command.finish(60) == 69, command.output
        assert command.lines("go on, when there is room, with the same command and --resume")
        (line,) = command.lines("trainer 0")
        assert re.search(
            r"trainer 0: tcp://\S+: memory limit: .* of 33,554,432 bytes .*; raise server_m", line
        )
    finally:
        command.clean_up()


@LIMITS_MEMORY
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
