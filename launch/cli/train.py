"""``pslib train`` and ``pslib demo``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launch.cli.command import (
    FOLDER,
    command,
    job_options,
    machine_options,
    option,
    quiet_option,
    read_job_with,
    run_options,
    trainers_option,
    ui_option,
)
from launch.places.options import HostOptions, RunOptions, selected_launcher
from launch.worker.json_output import write_json


@command(
    "train",
    """
pslib train clicks.yaml --servers 2 --trainers 2 --set training.epochs=2
pslib train clicks.yaml --test-share 0.1
pslib train clicks.yaml --ui
pslib train clicks.yaml --resume
pslib train --resume runs/clicks-2
pslib train clicks.yaml --on ssh --hosts hosts.txt
pslib train clicks.yaml --on slurm --per-node "servers=1 trainers=4"
pslib train clicks.yaml --on ray --address 10.0.0.1:6379
""",
)
@job_options
@trainers_option
@option("--test-share", "SHARE", "in place of data.test_share: of train, held out and evaluated", float)
@run_options("folder of the run, in place of the file's")
@machine_options
def train_command(
    config: str,
    overrides: tuple[str, ...],
    test_share: float | None,
    machines: HostOptions,
    run: RunOptions,
) -> int:
    """Train, test and save the model of a job file.

    A run whose folder holds an earlier run gets a folder of its own, with the next number. --resume goes on
    with the newest run that is not complete and has saved something, or with the one whose folder is given
    as CONFIG.
    """
    from launch.runs.folders import folder_of_run
    from launch.runs.train import run_job
    from pslib.storage import check_local

    check_local("out", run.out)
    of_run = Path(config).is_dir()
    if of_run:
        config, run = str(Path(config) / "job.yaml"), replace(run, out=run.out or config)
    hosts, servers, trainers = selected_launcher(machines), machines.servers, machines.trainers
    if hosts:
        servers, trainers = hosts.count("server"), hosts.count("trainer")
    job = read_job_with(config, overrides, servers, trainers, run.out, test_share, run.log_format)
    if job.json_logs:
        write_json()
    if of_run and run.resume:
        return run_job(job, run, hosts, machines.port)
    with folder_of_run(Path(job.out), run.overwrite, run.resume) as folder:
        return run_job(job.model_copy(update={"out": str(folder)}), run, hosts, machines.port)


@command("demo", "pslib demo --out runs/demo")
@option("--out", "DIR", "folder of the run (default: runs/demo)", FOLDER, default="runs/demo")
@ui_option
@quiet_option
def demo_command(out: str, ui: int | None, quiet: bool) -> int:
    """Make data whose best AUC is known, and train DeepFM with 2 servers and 2 trainers."""
    from launch.runs.demo import run_demo
    from pslib.storage import check_local

    check_local("out", out)
    return run_demo(Path(out), progress=not quiet, ui=ui)
