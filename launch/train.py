"""``pslib train``: check everything, run the cluster on this machine, keep the records, print the figures."""

from __future__ import annotations

import secrets
import sys
from typing import Any

from launch.job import Job
from launch.local import LocalLauncher
from launch.preflight import check_data, prepare_out
from launch.summary import best_possible, summary_lines, summary_of
from launch.supervise import Outcome, Plan, run_cluster
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
    recorder = RunRecorder(out, SystemClock(), progress, sys.stderr)
    outcome = run_cluster(LocalLauncher(job.cluster.trainers), plan, observe=recorder.observe)
    summary = _summary(job, outcome)
    recorder.finish(summary)
    if outcome.exit_code == EXIT_DONE:
        for line in summary_lines(summary, out, best_possible(job)):
            print(line)
    return outcome.exit_code


def _summary(job: Job, outcome: Outcome) -> dict[str, Any]:
    summary = summary_of(job, outcome.status, outcome.results)
    best = best_possible(job)
    return summary | {
        "best_possible_auc": best["auc"] if best else None,
        "exit_code": outcome.exit_code,
    }
