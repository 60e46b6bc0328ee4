"""``recovery: rollback``: when a peer is lost, all end, and the run begins again at its last checkpoint."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

from launch.job.job import Job, LoadSection, preempted_place, saved_place
from launch.supervisor.resume import Identity, keep_records
from launch.supervisor.run_spec import Outcome, Plan
from pslib.errors import UnavailableError
from pslib.storage import below, parent_and_name, shown

__all__ = ["goes_back", "step_back"]


def goes_back(outcome: Outcome, job: Job, tried: int) -> bool:
    """Whether a run that ended so is to begin again, after so many times that it has."""
    cluster = job.cluster
    lost = outcome.exit_code == UnavailableError.exit_code and not outcome.final
    return lost and cluster.recovery == "rollback" and tried < cluster.restarts


def step_back(outcome: Outcome, job: Job, plan: Plan, out: Path, tried: int) -> tuple[Job, Plan]:
    """The job that begins at the last checkpoint, or at the beginning without one, and how to run it.

    Nothing of the processes that have ended is used: the cluster has another id, and logs of its own. The
    effective job file is written anew; what was recorded so far stays as ``metrics-N.jsonl``.
    """
    saved = str(outcome.status.get("saved") or "")
    if saved:
        job = job.model_copy(update={"load": LoadSection(path=_with_its_keys(saved, job))})
    written = out / "job.yaml.new"
    written.write_text(job.to_yaml(), encoding="utf-8")
    written.replace(out / "job.yaml")  # a full disk cuts none that is there
    keep_records(out, tried)
    identity = Identity(secrets.token_hex(8))
    log = None if plan.log is None else f"{plan.log}/back-{tried + 1}"
    return job, replace(plan, cluster_id=identity.cluster_id, launch=identity, log=log)


def _with_its_keys(saved: str, job: Job) -> str:
    """The checkpoint that a status names, with the keys of its URI that it leaves out: those of the job."""
    name = parent_and_name(saved)[1]
    for place in (saved_place(job), preempted_place(job), *([job.load.path] if job.load else [])):
        for one in (place, below(place, name)):
            if shown(one) == saved:
                return one
    return saved
