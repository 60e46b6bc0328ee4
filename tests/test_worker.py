"""What a worker process sets before any library is loaded."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource
import numpy as np
from launch import worker
worker._keep_memory()
def step():
    layers = [np.ones((1024, 400), np.float32) for _ in range(8)]
    return sum(layer[0, 0] for layer in layers)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20)
"""


def faults_of_a_step() -> int:
    """Page faults of a step that allocates 13 MB, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of another C library")
def test_a_trainer_keeps_the_memory_of_a_step_for_the_next_one() -> None:
    assert faults_of_a_step() < 20
