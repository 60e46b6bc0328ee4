"""``pslib train``: check everything, run the cluster, write the records, print the figures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from launch.job.compatibility import check_same_training
from launch.job.job import Job, saved_place, settings_of_job, unfinished_place
from launch.job.model import ranks_items
from launch.job.paths import from_here
from launch.job.preflight import (
    check_content,
    check_data,
    check_load,
    check_log,
    check_memory,
    check_save,
    check_seen,
    hold_out,
    hold_port,
    prepare_out,
)
from launch.places.keys import keys_of_run
from launch.places.local import LocalLauncher
from launch.places.options import RemoteLauncher, RunOptions
from launch.supervisor.discovery import TARGETS, from_checkpoint, note_earlier, note_saved, what_saves
from launch.supervisor.resume import (
    check_no_logs,
    completed,
    goes_back,
    had_logs,
    identity_of,
    keep_records,
    step_back,
    way_on,
    way_on_when_mended,
)
from launch.supervisor.run_records import (
    best_possible,
    keep_log,
    records_line,
    run_recorded,
    say,
    summary_lines,
)
from launch.supervisor.run_spec import Identity, Launcher, MetricsPlan, Outcome, Plan
from pslib.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    CheckpointError,
    ConfigurationError,
    PreemptedError,
    UnavailableError,
)
from pslib.monitor.page_server import check_page
from pslib.storage import shown

if TYPE_CHECKING:
    from pslib.config import ClusterConfig
    from pslib.transport import Keys


ENDED_EARLY = (PreemptedError.exit_code, UnavailableError.exit_code, EXIT_INTERRUPTED)
"""Exit codes of a run that ended early, without an error of its job."""


def run_job(job: Job, run: RunOptions, hosts: RemoteLauncher | None = None, port: int = 0) -> int:
    """Train, test and save what a job file describes.

    Parameters
    ----------
    job : Job
        With the output folder of the run, whatever ``run.out`` is.
    run : RunOptions
    hosts : RemoteLauncher or None
        Places of its processes; None: this machine.
    port : int
        Port of the coordinator on this machine; 0 is any free one.

    Returns
    -------
    int
        The run's exit code.

    Raises
    ------
    ConfigurationError
        When data or output folder are unsuitable; nothing has been changed then.
    UnavailableError
        When a host can't be asked for the run's folder; nothing has been changed then.
    """
    if run.resume and (line := completed(job)):
        print(f"pslib: {line}")
        return EXIT_DONE
    job = _with_tensorboard(job) if run.tensorboard else job
    job.trackers.check()
    if (ui := _port_of_page(job, run)) is not None:
        check_page(port=ui)
    launcher, own_keys = _place(job, port, run.keys, hosts)
    rows = _check(job, hosts, run.resume)
    with launcher.hold(job.cluster.servers, job.cluster.trainers):
        return _train(job, run, launcher, own_keys, rows, _again(run, hosts))


def _with_tensorboard(job: Job) -> Job:
    """Return the job with event files, as ``--tensorboard`` asks for them."""
    return job.model_copy(update={"trackers": replace(job.trackers, tensorboard=True)})


def _train(
    job: Job,
    run: RunOptions,
    launcher: Launcher,
    own_keys: Mapping[str, Keys] | None,
    rows: int | None,
    again: str,
) -> int:
    """Run a checked job; ``again`` are the options that a resumed run needs."""
    job, launch = _begun(job, run.overwrite, run.resume)
    keep_log(Path(job.out) / "logs", launch.cluster_id, job.json_logs)
    _warn_of_few_steps(job, None if run.quiet or run.resume else rows)
    out = Path(job.out)
    effective = out / "job.yaml"
    effective.write_text(job.to_yaml(), encoding="utf-8")
    log = launch.log or log_folder(job.cluster_config, job.cluster.log, out)
    plan = Plan(
        config=job.cluster_config,
        cluster_id=launch.cluster_id,
        launch=launch,
        trainer_arguments=("--job", str(effective)),
        logs=out / "logs",
        keys=own_keys,
        saves=log is None,
        log=log,
        json_logs=job.json_logs,
        metrics=None if job.metrics is None else MetricsPlan(job.metrics.port, out / TARGETS),
    )
    best = best_possible(job)
    facts = {
        "job": job.model.name,
        "model": job.model.name,
        "seed": job.training.seed,
        "best_possible_auc": best["auc"] if best else None,
    }
    tried = 0
    while True:
        outcome, summary = run_recorded(
            launcher,
            plan,
            out,
            progress=not run.quiet,
            facts=facts,
            callbacks=job.trackers.callbacks,
            settings=settings_of_job(job),
            ui=_port_of_page(job, run),
        )
        if not goes_back(outcome, job, tried):
            break
        where = shown(outcome.status.get("saved") or "") or "the beginning: there is no checkpoint"
        say(f"all processes begin again at {where} ({tried + 1} of {job.cluster.restarts})")
        job, plan = step_back(outcome, job, plan, out, tried)
        keep_log(plan.logs, plan.cluster_id, plan.json_logs)
        tried += 1
    if outcome.exit_code == EXIT_DONE:
        note_saved(job, out)
        _remove_unfinished(job)
        for line in summary_lines(summary, out, best):
            print(line)
        if job.checkpoint.path:
            print(f"checkpoint    {shown(job.checkpoint.path)}")
    else:
        _tell_end(job, plan, effective, outcome, again)
    return outcome.exit_code


def _port_of_page(job: Job, run: RunOptions) -> int | None:
    """Return the port of the run's page; None: no page."""
    return job.ui.port if run.ui is None and job.ui is not None else run.ui


def log_folder(config: ClusterConfig, given: str | None, out: Path) -> str | None:
    """Return the folder of update logs and the coordinator's journal; None without logging."""
    if config.durability == "memory":
        return None
    return str(Path(given).absolute() if given else out.absolute() / "log")


def _place(
    job: Job, port: int, keys: str | None, hosts: RemoteLauncher | None
) -> tuple[Launcher, Mapping[str, Keys] | None]:
    """Return the launcher of the processes, and the keys that they need."""
    if hosts:
        return hosts, keys_of_run(keys, hosts.open_addresses, hosts.insecure_network)
    return LocalLauncher(job.cluster.trainers, hold_port(port)), keys_of_run(keys, (), insecure=False)


def _warn_of_few_steps(job: Job, rows: int | None) -> None:
    """Warn of a training that is too short for its batches and trainers, unless it goes on with another."""
    from pslib.data.inspect.small_data import few_steps

    training = job.training
    if rows is None or job.load:
        return
    trainers, of_clicks = job.cluster.trainers, not ranks_items(job.model.name)
    if line := few_steps(rows, training.batch_rows, training.epochs, trainers, of_clicks=of_clicks):
        say(f"warning: {line}")


def _check(job: Job, hosts: RemoteLauncher | None, resume: bool) -> int | None:
    """Run all checks before anything is changed; return the rows to train on, None for a stream."""
    rows = check_data(job)
    if not resume:
        check_load(job)
    check_save(job)
    if hosts:
        check_seen(job, hosts.not_seeing)
    else:  # on other hosts the folder is theirs
        cluster = job.cluster
        check_memory(job.build_model(), job.optimizers.dense, cluster.trainers, cluster.servers)
        check_log("cluster.log", job.cluster.log, resume)
    return rows


def _again(run: RunOptions, hosts: RemoteLauncher | None) -> str:
    """Return the options that a resumed run needs again."""
    return (f" --keys {quote(run.keys)}" if run.keys else "") + (f" {hosts.options}" if hosts else "")


def _tell_end(job: Job, plan: Plan, effective: Path, outcome: Outcome, again: str) -> None:
    """Print where the records of an unfinished run are, and how to resume it; a loss is reported already."""
    if records := records_line(effective.parent):
        say(f"its records: {records}")
    code, begun = outcome.exit_code, int(outcome.status.get("job", 0)) > 0
    by_data = code == ConfigurationError.exit_code and (begun or _has_saved(job))
    if code not in ENDED_EARLY and not by_data:
        return
    file = quote(from_here(effective))
    if by_data:
        line = way_on_when_mended(job, plan.log, file, again)
    else:
        command = f"pslib train --resume {quote(from_here(effective.parent))}{again}"
        line = way_on(job, plan.log, command, no_room=outcome.final)
    if line or code in (PreemptedError.exit_code, EXIT_INTERRUPTED):
        say(line or "nothing was saved, so that nothing can go on: begin anew")
    elif by_data:
        say(f"nothing was saved of what was trained: begin anew; {what_saves(job)}")


def _remove_unfinished(job: Job) -> None:
    """Remove the checkpoints of the unfinished training: the last one has all of it."""
    from pslib.checkpoint import prune

    place = unfinished_place(job)
    if place != saved_place(job):
        prune(place, 0)
        with suppress(OSError):  # there is none, or something else is in it
            Path(place).rmdir()


def _has_saved(job: Job) -> bool:
    """Look for a checkpoint of this run on disk: the last status may be a second old and precede all work."""
    with suppress(CheckpointError):
        return from_checkpoint(job).load is not None
    return False


def _begun(job: Job, overwrite: bool, resume: bool) -> tuple[Job, Identity]:
    """Make the folder; return the job and its identity, those of the resumed run if it has logs.

    Without logs the job starts from the run's checkpoint, as a new run beside the records of the old one. The
    new run may enable logs.
    """
    from_logs = resume and job.cluster_config.durability != "memory" and had_logs(Path(job.out))
    from_saved = resume and not from_logs
    if resume and Path(job.out).is_dir():
        hold_out(Path(job.out), resume)
    if from_saved:
        check_no_logs(Path(job.out))
    if resume:
        check_same_training(job, from_logs)
    if from_saved:
        job = from_checkpoint(job)
        check_content(job)
    out = prepare_out(job.out, overwrite, resume)
    if from_saved:
        keep_records(out)
    elif not resume:
        note_earlier(job, out)
    return job, identity_of(out, job.cluster_config, from_logs)
