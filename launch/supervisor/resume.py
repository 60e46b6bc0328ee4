"""Resumption of a run: from the logs of its processes, or from a checkpoint when a peer is lost."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from launch.job.job import Job, saved_place, unfinished_place
from launch.job.paths import from_here, literal
from launch.job.yaml12 import read_yaml
from launch.supervisor.discovery import BEGAN_WITH, from_checkpoint, logs_of
from launch.supervisor.run_spec import Identity, Outcome, Plan
from pslib.config import ClusterConfig
from pslib.errors import EXIT_DONE, CheckpointError, ConfigurationError, UnavailableError
from pslib.monitor.run_folder import NOTE, ended_run, read_record
from pslib.storage import below, parent_and_name, shown
from pslib.text import counted
from pslib.trainer.settings import LoadSettings


def identity_of(out: Path | None, config: ClusterConfig, resume: bool) -> Identity:
    """Return a new identity, or with ``resume`` the next one of the run in this folder.

    Raises
    ------
    ConfigurationError
        When there is no run in the folder, nothing of it is left, or it began with other settings than
        ``config`` for the layout of rows in its logs.
    """
    if not resume:
        return Identity(secrets.token_hex(8))
    if out is None:
        raise ConfigurationError("--resume: which run? give --out with its folder")
    if config.durability == "memory":
        raise ConfigurationError(
            f"--resume: this run has logs, {log}: add --durability log"
            if (log := logs_of(out))
            else "--resume needs logs (durability log or disk); a script loads its checkpoint itself"
        )
    if not had_logs(out):
        raise ConfigurationError(
            f"--resume: the run in {out} had no logs to go on with (durability memory): a script loads its "
            "checkpoint itself, in a run of its own: give another --out, or --overwrite"
        )
    note = read_record(out / "logs" / NOTE)
    launch, log = note.get("launch", 0), note.get("log")
    if "cluster_id" not in note or not isinstance(launch, int):
        raise ConfigurationError(f"--resume: {out} holds no run that has started: no logs/{NOTE} there")
    identity = Identity(str(note["cluster_id"]), launch + 1, None if log is None else str(log))
    if problems := _other_numbers(note, config, identity.log, out):
        raise ConfigurationError(*problems)
    keep_records(out, launch)
    return identity


def had_logs(out: Path) -> bool:
    """Return whether a run has logs, at any place; True if unknown."""
    return read_record(out / "logs" / NOTE).get("log", "unknown") is not None


def check_no_logs(out: Path) -> None:
    """Refuse to resume from a checkpoint if the run has logs, which hold all later acknowledged pushes.

    Raises
    ------
    ConfigurationError
        When the run has logs.
    """
    if log := logs_of(out):
        durability = _began_with(out).get("cluster", {}).get("durability", "log")
        recipe = f"pslib train --resume {quote(from_here(out))}"
        raise ConfigurationError(
            f"--resume: this run has logs, {log}: add --set cluster.durability={durability}, or {recipe}"
        )


def _began_with(out: Path) -> dict[str, Any]:
    """Return the effective settings in a run's folder; empty if unreadable."""
    with suppress(OSError, ValueError, ConfigurationError):
        plain = read_yaml((out / "job.yaml").read_text(encoding="utf-8"), "job.yaml")
        return plain if isinstance(plain, dict) else {}
    return {}


def _other_numbers(note: Mapping[str, Any], config: ClusterConfig, log: str | None, out: Path) -> list[str]:
    """Return a line for each setting of the row layout that differs from the run's first launch.

    The journal records the members, and these settings determine the units of each. From its first image on
    the journal records the units too, so that the run may continue with the servers that ``pslib scale`` has
    set.
    """
    from pslib.update_log.coordinator_log import has_beginning

    if log is None or not has_beginning(f"{log}/coordinator"):
        return []
    problems = []
    for name in BEGAN_WITH:
        began, came = note.get(name), getattr(config, name)
        if not isinstance(began, int) or began == came:
            continue
        line = f"cluster.{name}: this run began with {began}, got {came}: resume with {began}"
        if name == "servers":
            how = "grow" if came > began else "shrink"
            line += f", then {how} it: pslib scale {quote(str(out))} --servers {came}"
        problems.append(line)
    return problems


def keep_records(out: Path, first: int = 0) -> None:
    """Keep ``metrics.jsonl`` of the earlier run as ``metrics-N.jsonl``: the first free N from ``first``.

    A new start overwrites that file. Launches, rollbacks and resumptions from a checkpoint count separately,
    so a number may be taken already.
    """
    free = next(n for n in itertools.count(first) if not (out / f"metrics-{n}.jsonl").exists())
    with suppress(OSError):
        (out / "metrics.jsonl").rename(out / f"metrics-{free}.jsonl")


def earlier_metrics(out: Path) -> list[Path]:
    """Return the metrics of a run's earlier launches, the first launch first; see `keep_records`."""
    numbered = {one.stem.removeprefix("metrics-"): one for one in out.glob("metrics-*.jsonl")}
    return [numbered[number] for number in sorted(filter(str.isdecimal, numbered), key=int)]


def completed(job: Job) -> str | None:
    """Return a line on a run that has trained all that its job asks for; None if it can continue.

    A stream is never complete: new files may have arrived.

    Raises
    ------
    ConfigurationError
        When the job asks for more epochs than the finished run has trained.
    """
    ended = ended_run(job.out)
    if ended is None or ended.exit_code != EXIT_DONE or job.data.stream:
        return None
    place, epochs = saved_place(job), _epochs_in(job) or ended.epochs
    further = f"pslib train CONFIG --set {_load_from(place)} --set training.epochs=N --out ANOTHER"
    line = (
        f"{job.out} is complete: {counted(epochs, 'epoch')}, ended at {ended.ended_utc}; its checkpoint is "
        f"{shown(place)}; to train N epochs more: {further}"
    )
    if job.training.epochs > (_planned_in(Path(job.out)) or epochs) and job.training.stopping is None:
        raise ConfigurationError(f"--resume: expected at most the epochs that were planned; {line}")
    return line


def _planned_in(out: Path) -> int:
    """Return the number of epochs that a run was to add; 0 if unknown."""
    with suppress(ValueError, KeyError, TypeError):
        return int(_began_with(out)["training"]["epochs"])
    return 0


def _epochs_in(job: Job) -> int:
    """Return the number of epochs in the last checkpoint of a run; 0 if unknown."""
    from pslib.checkpoint import newest, read_manifest

    try:
        return int(read_manifest(newest(saved_place(job))).about.get("epochs", 0))
    except CheckpointError:
        return 0


def way_on(job: Job, log: str | None, command: str, *, no_room: bool = False) -> str | None:
    """Describe the remains of an unfinished run and the command that resumes it; None: nothing is left.

    Parameters
    ----------
    job : Job
    log : str or None
        Folder of its logs.
    command : str
        Command that resumes it.
    no_room : bool
        True if memory or disk space ran out, so that a resumed run would fail again.
    """
    go_on = "go on, when there is room, with" if no_room else "go on with"
    if log is not None:
        return f"all that was acknowledged is in its logs, {log}; {go_on}: {command}"
    try:
        place = from_checkpoint(job).load
    except CheckpointError:
        return None
    assert place is not None
    return f"the checkpoint is {shown(place.path)}; {go_on}: {command}"


def way_on_when_mended(job: Job, log: str | None, effective: str, again: str) -> str | None:
    """Describe how to resume a run that failed on bad data, after the data is repaired.

    An interrupted fit, and calls in the logs, resume only with the same data, compared by size.

    Parameters
    ----------
    job : Job
    log : str or None
        Folder of its logs.
    effective : str
        Its effective job file, quoted for a command.
    again : str
        Options to repeat on resumption.
    """
    from pslib.checkpoint import read_manifest

    resume = f"pslib train --resume {quote(from_here(Path(job.out)))}{again}"
    try:
        load = from_checkpoint(job).load
    except CheckpointError:
        return way_on(job, log, resume)
    assert load is not None
    place = shown(load.path)
    within = "leases" in read_manifest(load.path).cut.get("table", {})
    if not (within or log):
        return f"the checkpoint is {place}; go on with: {resume}"
    anew = " --set load.resume=false" if within else ""
    return (
        f"the checkpoint is {place}; when the data is mended, begin with it: pslib train {effective} --set "
        f"{_load_from(load.path)}{anew} --out ANOTHER{again}"
    )


def _load_from(place: str) -> str:
    """Return the setting of a checkpoint to load, as one types it in a shell."""
    return quote(f"load.path={literal(shown(place))}")


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
        job = job.model_copy(update={"load": LoadSettings(path=_with_its_keys(saved, job))})
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
    for place in (saved_place(job), unfinished_place(job), *([job.load.path] if job.load else [])):
        for one in (place, below(place, name)):
            if shown(one) == saved:
                return one
    return saved
