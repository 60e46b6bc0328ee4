"""Nodes of a Slurm allocation as places to run: one job step a process; each ends when the other ends.

Called inside an allocation, from the script of ``sbatch`` or under ``salloc``. All nodes run the same
processes, given by ``--per-node`` in the syntax of a hosts file, ``"servers=1 trainers=4"``. The step of each
process has all resources of the job on its node, so that processes share them as on a machine without Slurm.

When Slurm ends a job (``scancel``, time limit, preemption) it sends SIGTERM to all steps and, 30 s later by
default, SIGKILL. A worker that gets SIGTERM tells the launcher, which ends the run in order and saves it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launch.places.hosts import LOOK_S, Host, HostsLauncher, read_hosts
from launch.places.options import HostOptions
from launch.supervisor.run_spec import Command
from pslib.errors import ConfigurationError, UnavailableError
from pslib.process.shutdown import TOGETHER_VARIABLE

STEP = (
    "srun",
    "--overlap",  # steps share their node
    *("--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none"),  # all that the job has on the node
    *("--mpi=none", "--quiet"),
)

REMARKS = "srun: "
"""Prefix of lines that srun adds to a worker's output, for example on its exit code."""

KEPT = ("SLURM_CONF",)
"""Slurm variables passed to srun; others would change the step, or are refused beside `STEP`."""


@dataclass(frozen=True)
class SlurmLauncher(HostsLauncher):
    """Launcher that runs processes as steps of a Slurm job.

    Attributes
    ----------
    job : str
        Number of the allocation.
    """

    job: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a worker; Slurm sends SIGTERM to all steps at once."""
        return {TOGETHER_VARIABLE: "1"}

    def over(self, host: Host, script: str) -> Command:
        """Return a job step whose shell ignores SIGTERM from Slurm, so that the worker handles it."""
        script = f"trap '' TERM; {script}"
        words = (*STEP, f"--jobid={self.job}", f"--nodelist={host.name}", "/bin/sh", "-c", script)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in KEPT
        }
        return Command(words, environment, host.name, REMARKS)

    def try_it(self, name: str) -> str:
        """Return a step that does nothing."""
        return f"srun --overlap --jobid={self.job} --nodelist={name} --ntasks=1 true"


OPTIONS = ("per_node",)
"""Options of the command line that this place takes."""


def launcher_of(options: HostOptions, environment: Mapping[str, str] = os.environ) -> SlurmLauncher:
    """Return the launcher of the allocation that this process is part of.

    Raises
    ------
    ConfigurationError
        When there is no allocation, or ``--per-node`` is wrong.
    UnavailableError
        When Slurm does not report the addresses of its nodes.
    """
    job, nodes = environment.get("SLURM_JOB_ID"), environment.get("SLURM_JOB_NODELIST")
    if not job or not nodes:
        raise ConfigurationError(
            "--on slurm runs inside an allocation, and SLURM_JOB_ID is not set: call it in a script for "
            "sbatch, or after salloc"
        )
    if options.servers is not None or options.trainers is not None:
        raise ConfigurationError(
            "--servers and --trainers are said of each node with --on slurm: "
            '--per-node "servers=N trainers=N"'
        )
    each = options.per_node or ""
    lines = [f"{name} address={address} {each}" for name, address in _addresses(nodes)]
    try:
        hosts = read_hosts("\n".join(lines), "--per-node", str(Path.cwd()))
    except ConfigurationError as error:  # the same error for each node
        raise ConfigurationError(
            *dict.fromkeys(
                line.replace(line.split()[0], "--per-node:", 1) for line in str(error).splitlines()
            )
        ) from None
    if "python=" not in each:
        hosts = [replace(host, python=sys.executable) for host in hosts]
    return SlurmLauncher(hosts, options.insecure_network, options.port, job=job)


def _addresses(nodes: str) -> list[tuple[str, str]]:
    """Return name and address of each node of Slurm's short form, ``node[1-3,7]``."""
    asked = ("scontrol", "show", "-o", "node", nodes)
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer in {LOOK_S:.0f} s"
        raise UnavailableError(f"scontrol, which says where {nodes} is, can't be asked: {why}") from error
    found = re.findall(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        said = (done.stderr.strip().splitlines() or ["it names no node"])[-1]
        raise UnavailableError(f"scontrol does not say where {nodes} is: {said}; try {shlex.join(asked)}")
    return found
