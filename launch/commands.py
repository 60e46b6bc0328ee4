"""What each command of ``pslib`` does: a function each, from parsed arguments to exit code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["demo", "evaluate", "launch", "train", "version"]


def _changes(options: argparse.Namespace) -> dict[str, object]:
    """Options that stand for settings of the job file."""
    changes: dict[str, object] = {}
    for name in ("servers", "trainers"):
        if getattr(options, name, None) is not None:
            changes[f"cluster.{name}"] = getattr(options, name)
    if getattr(options, "out", None) is not None:
        # Given on the command line, hence relative to where the user is.
        changes["out"] = str(Path(options.out).resolve())
    return changes


def train(options: argparse.Namespace) -> int:
    """``pslib train``."""
    from launch.job import read_job
    from launch.train import run_job

    job = read_job(options.config, options.overrides, _changes(options))
    return run_job(job, overwrite=options.overwrite, progress=not options.quiet)


def evaluate(options: argparse.Namespace) -> int:
    """``pslib eval``."""
    from launch.job import read_job
    from launch.train_job import evaluate_checkpoint

    job = read_job(options.config, options.overrides, _changes(options))
    result = evaluate_checkpoint(job, options.checkpoint, options.data)
    print(f"examples    {result.examples:,} ({result.positives:,} positive)")
    print(f"AUC         {result.auc:.6f}")
    print(f"log loss    {result.logloss:.6f}")
    print(f"calibration {result.calibration:.4f}")
    return 0


def launch(options: argparse.Namespace) -> int:
    """``pslib launch``."""
    from launch.script import run_script

    return run_script(options)


def demo(options: argparse.Namespace) -> int:
    """``pslib demo``."""
    from launch.demo import run_demo

    return run_demo(Path(options.out), progress=not options.quiet)


def version(options: argparse.Namespace) -> int:
    """``pslib version``."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        print(f"pslib {version_of('sparse-pslib')}")
    except PackageNotFoundError:
        print("pslib (not installed, run from its sources)")
    print(f"Python {sys.version.split()[0]}")
    return 0
