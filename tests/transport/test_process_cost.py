"""Memory and time of a process of a cluster before it has any data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("pyarrow", "pandas", "scipy", "pydantic", "matplotlib", "torch", "yaml")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "module", ["pslib.server.server", "pslib.coordinator.coordinator", "pslib.cluster", "launch.worker.main"]
)
def test_it_loads_nothing_heavy_before_it_needs_it(module: str) -> None:
    """pyarrow alone is 40 MB and 0.2 s of each of hundreds of processes."""
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert loaded.stdout.strip() == "[]", loaded.stdout + loaded.stderr
