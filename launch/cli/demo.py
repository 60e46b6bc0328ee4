"""``pslib demo``."""

from __future__ import annotations

from pathlib import Path

from launch.cli.command import FOLDER, command, option, quiet_option


@command("demo", "pslib demo --out runs/demo")
@option("--out", "DIR", "folder of the run (default: runs/demo)", FOLDER, default="runs/demo")
@quiet_option
def demo_command(out: str, quiet: bool) -> int:
    """Make data whose best AUC is known, and train DeepFM with 2 servers and 2 trainers."""
    from launch.runs.demo import run_demo
    from pslib.storage import check_local

    check_local("out", out)
    return run_demo(Path(out), progress=not quiet)
