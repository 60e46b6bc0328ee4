"""A real server that the kernel kills for want of memory: its end is told as such."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kubelet.container import memory_group, passed_limit
from tests.support.processes.counting_runs import write_counting_examples, write_job

pytestmark = [pytest.mark.cluster, pytest.mark.root]

ROOT = Path(__file__).parents[3]
LIMIT = 1 << 30
"""All processes of the run; 500,000 rows of 2 KiB do not fit beside them, and the server holds them."""


def test_a_server_that_grows_beyond_a_control_group_is_told_to_have_been_killed_for_memory(
    tmp_path: Path,
) -> None:
    group = memory_group(f"pslib-test-{os.getpid()}", LIMIT)
    if group is None:
        pytest.skip(
            "no control group with a limit of memory can be made here; the line is shown everywhere by "
            "test_exit_report.py beside it"
        )
    examples = write_counting_examples(tmp_path / "train.parquet", 500_000)
    job = write_job(tmp_path, examples, {"batch_rows": 4096}, {"servers": 1, "trainers": 1})
    begin = f'echo 0 >{group}/cgroup.procs && exec "$0" -m pslib train {job} --quiet --set model.dim=255'
    try:
        done = subprocess.run(
            ["sh", "-c", begin, sys.executable], cwd=ROOT, capture_output=True, text=True, check=False
        )
        was_kill = passed_limit(group)
    finally:
        group.rmdir()
    assert was_kill, done.stderr
    assert done.returncode == 69, done.stderr
    (line,) = [one for one in done.stderr.splitlines() if "server 0 (" in one and "SIGKILL" in one]
    assert "the kernel has killed a process for want of memory (OOM)" in line
    assert "bound them (server_memory_bytes)" in line
