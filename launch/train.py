"""``pslib train``: check everything, run the cluster on this machine, keep the records, print the figures."""

from __future__ import annotations

import secrets
import sys
from typing import Any

from launch.job import Job
from launch.local import LocalLauncher
from launch.preflight import check_data, prepare_out
from launch.summary import best_possible, summary_lines, summary_of
from launch.supervise import Plan, run_cluster
from pslib.clock import SystemClock
from pslib.errors import EXIT_DONE

__all__ = ["run_job"]


def run_job(job: Job, *, overwrite: bool, progress: bool) -> int:
    """Train, test and save what a job file describes.

    Parameters
    ----------
    job : Job
    overwrite : bool
        Whether an earlier run in ``job.out`` may be replaced.
    progress : bool
        Whether to show a bar.

    Returns
    -------
    int
        The run's exit code.

    Raises
    ------
    ConfigurationError
        When data or the output folder do not allow the run; nothing has been changed then.
    """
    from pslib.recorder import RunRecorder

    check_data(job)
    out = prepare_out(job.out, overwrite)
    effective = out / "job.yaml"
    effective.write_text(job.to_yaml(), encoding="utf-8")
    plan = Plan(
        config=job.cluster_config,
        cluster_id=secrets.token_hex(8),
        trainer_arguments=("--job", str(effective)),
        logs=out / "logs",
    )
    with RunRecorder(out, SystemClock(), progress=progress, stream=sys.stderr) as recorder:
        outcome = run_cluster(
            LocalLauncher(job.cluster.trainers),
            plan,
            observe=lambda status: recorder.observe(_for_recorder(status)),
            say=_say,
        )
        best = best_possible(job)
        summary = recorder.finish(
            summary_of(job, outcome.status, outcome.results)
            | {"best_possible_auc": best["auc"] if best else None, "exit_code": outcome.exit_code}
        )
    if outcome.exit_code == EXIT_DONE:
        for line in summary_lines(summary, out, best):
            print(line)
    return outcome.exit_code


def _say(line: str) -> None:
    """A line for people, above the bar where there is one."""
    from tqdm import tqdm

    tqdm.write(f"pslib: {line}", file=sys.stderr)


def _for_recorder(status: dict[str, Any]) -> dict[str, Any]:
    """The coordinator's status with evaluations alone as results."""
    return status | {"results": [one for one in status.get("results", ()) if one.get("kind") == "evaluate"]}
