"""Options of a run: machines, folder and records; and the launcher of the machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pslib.errors import ConfigurationError

if TYPE_CHECKING:
    from launch.places.hosts import HostsLauncher

__all__ = ["HostOptions", "RunOptions", "hosts_of"]


COUNTED_BY = {
    "ssh": "--servers and --trainers stand in the hosts file with --on ssh: servers=N trainers=N",
    "slurm": "--servers and --trainers are said of each node with --on slurm: "
    '--per-node "servers=N trainers=N"',
}
"""Where the numbers of processes of other machines stand."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of ``pslib train`` and ``pslib launch`` that select machines and numbers of processes.

    Attributes
    ----------
    on : str
        local, ssh or slurm.
    hosts, ssh_config : str or None
        With ssh: the hosts file, and the file for ssh's option ``-F``.
    per_node : str or None
        With slurm: the processes of each node, as in a hosts file.
    insecure_network : bool
        Whether to run without encryption on addresses that other machines reach.
    port : int
        Port of the coordinator; 0 is any free one.
    servers, trainers : int or None
        Numbers of processes, on this machine only; None: the default.
    """

    on: str = "local"
    hosts: str | None = None
    ssh_config: str | None = None
    per_node: str | None = None
    insecure_network: bool = False
    port: int = 0
    servers: int | None = None
    trainers: int | None = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of ``pslib train`` and ``pslib launch`` about the run's folder and records.

    Attributes
    ----------
    out : str or None
        Folder of the run; None: that of the job file, or for a script none.
    keys : str or None
        Folder of keys to encrypt with; None does not.
    overwrite, resume : bool
        Whether to replace an earlier run in the folder, or to continue it, from its logs or its checkpoint.
    tensorboard : bool
        Whether to write event files for TensorBoard into the folder.
    quiet : bool
        Whether to show no progress.
    """

    out: str | None = None
    keys: str | None = None
    overwrite: bool = False
    resume: bool = False
    tensorboard: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        """Refuse to replace the run that is to be continued."""
        if self.overwrite and self.resume:
            raise ConfigurationError("--overwrite is not allowed with --resume: leave one of them out")


def hosts_of(options: HostOptions) -> HostsLauncher | None:
    """Return the launcher that the options select; None: this machine.

    Raises
    ------
    ConfigurationError
        When an option belongs to another place, or its value is wrong.
    UnavailableError
        When Slurm does not report the addresses of its nodes.
    """
    for option, given, place in (
        ("--hosts", options.hosts, "ssh"),
        ("--per-node", options.per_node, "slurm"),
    ):
        if given is not None and options.on != place:
            raise ConfigurationError(f"{option} is for --on {place}; leave one of them out")
    counted = options.servers is not None or options.trainers is not None
    if options.on in COUNTED_BY and counted:
        raise ConfigurationError(COUNTED_BY[options.on])
    if options.on == "ssh":
        from launch.places.ssh import ssh_hosts

        return ssh_hosts(options.hosts, options.ssh_config, options.insecure_network, options.port)
    if options.on == "slurm":
        from launch.places.slurm import slurm_nodes

        return slurm_nodes(options.per_node, options.insecure_network, options.port)
    return None
