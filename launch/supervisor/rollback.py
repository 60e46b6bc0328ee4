"""``recovery: rollback``: when a peer is lost, restart all processes from the last checkpoint."""

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
    """Return whether a run with this outcome is to roll back, given the number of earlier rollbacks."""
    cluster = job.cluster
    lost = outcome.exit_code == UnavailableError.exit_code and not outcome.final
    return lost and cluster.recovery == "rollback" and tried < cluster.restarts


def step_back(outcome: Outcome, job: Job, plan: Plan, out: Path, tried: int) -> tuple[Job, Plan]:
    """Return the job, set to start from the last checkpoint or without one from the beginning, and its plan.

    No state of the ended processes is used: the cluster has another id and new logs. The effective job file
    is rewritten; earlier metrics stay as ``metrics-N.jsonl``.
    """
    saved = str(outcome.status.get("saved") or "")
    if saved:
        job = job.model_copy(update={"load": LoadSection(path=_with_its_keys(saved, job))})
    written = out / "job.yaml.new"
    written.write_text(job.to_yaml(), encoding="utf-8")
    written.replace(out / "job.yaml")  # a full disk does not truncate the old one
    keep_records(out, tried)
    identity = Identity(secrets.token_hex(8))
    log = None if plan.log is None else f"{plan.log}/back-{tried + 1}"
    return job, replace(plan, cluster_id=identity.cluster_id, launch=identity, log=log)


def _with_its_keys(saved: str, job: Job) -> str:
    """Restore the credentials of a checkpoint URI, which a status leaves out, from the job."""
    name = parent_and_name(saved)[1]
    for place in (saved_place(job), preempted_place(job), *([job.load.path] if job.load else [])):
        for one in (place, below(place, name)):
            if shown(one) == saved:
                return one
    return saved
