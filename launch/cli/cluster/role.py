"""``pslib role``: one process of a job's cluster, for schedulers that start processes themselves."""

from __future__ import annotations

import rich_click as click

from launch.cli.command import FOLDER, command, flag, job_options, key_option, option, packed, trainers_option
from launch.places.identity import GivenIdentity

ROLES = ("coordinator", "server", "trainer")


@command(
    "role",
    """
pslib role coordinator job.yaml --cluster-id clicks --listen tcp://10.0.0.1:7077
pslib role server job.yaml --rank 0 --coordinator tcp://10.0.0.1:7077 --cluster-id clicks
pslib role trainer job.yaml
""",
)
@click.argument("role", type=click.Choice(ROLES), help="what this process is")
@job_options
@trainers_option
@packed(
    "given",
    GivenIdentity,
    option("--rank", "R", "number within the role (default: PSLIB_RANK, RANK, SLURM_PROCID ...)", int),
    option("--coordinator", "ADDRESS", "tcp://host:port (default: PSLIB_COORDINATOR, MASTER_ADDR ...)"),
    option("--cluster-id", "ID", "of the cluster (default: PSLIB_CLUSTER_ID, SLURM_JOB_ID ...)"),
    option("--listen", "ADDRESS", "tcp://host:port (default: PSLIB_ADDRESS, or toward the coordinator)"),
)
@key_option("the process's key (default: the file that PSLIB_KEYS names)")
@option("--log", "DIR", "folder of update logs and journal (default: that of the job)", FOLDER)
@flag("--insecure-network", "listen beyond this machine without encryption")
@option("--health", "PORT", "answer there: GET /livez, /readyz, /metrics", click.IntRange(1, 65535))
def role_command(
    role: str,
    config: str,
    servers: int | None,
    trainers: int | None,
    overrides: tuple[str, ...],
    given: GivenIdentity,
    key_file: str | None,
    log: str | None,
    insecure_network: bool,
    health: int | None,
) -> int:
    """Run one process of a job's cluster, where a scheduler and not a launcher starts the processes.

    The scheduler starts a process that has ended early again. See docs/guide/deploy.md.
    """
    from pslib.process.shutdown import preemption

    preemption.install()  # before slow imports: as process 1 of a container it has no default for SIGTERM

    import os
    import socket

    from launch.cli.command import read_job_with
    from launch.places.identity import identity_of_process
    from launch.runs.role import RoleOptions, run_role

    job = read_job_with(config, overrides, servers, trainers)
    identity = identity_of_process(role, given, os.environ, socket.gethostname())
    return run_role(job, identity, RoleOptions(key_file, log, insecure_network, health))
