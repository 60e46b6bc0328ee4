"""``pslib train``."""

from __future__ import annotations

from launch.cli.command import (
    command,
    job_options,
    machine_options,
    option,
    read_job_with,
    run_options,
    trainers_option,
)
from launch.places.options import HostOptions, RunOptions, selected_launcher


@command(
    "train",
    """
pslib train clicks.yaml --servers 2 --trainers 2 --set training.epochs=2
pslib train clicks.yaml --test-share 0.1
pslib train clicks.yaml --resume
pslib train clicks.yaml --on ssh --hosts hosts.txt
pslib train clicks.yaml --on slurm --per-node "servers=1 trainers=4"
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
    """Train, test and save the model of a job file."""
    from launch.runs.train import run_job
    from pslib.storage import check_local

    check_local("out", run.out)
    hosts, servers, trainers = selected_launcher(machines), machines.servers, machines.trainers
    if hosts:
        servers, trainers = hosts.count("server"), hosts.count("trainer")
    job = read_job_with(config, overrides, servers, trainers, run.out, test_share)
    return run_job(job, run, hosts, machines.port)
