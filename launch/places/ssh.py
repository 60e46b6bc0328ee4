"""Hosts over ssh as places to run: one ssh connection a process; each ends when the other ends."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from launch.places.hosts import Host, HostsLauncher
from launch.places.options import HostOptions, hosts_in_file
from launch.supervisor.run_spec import Command

SSH_OPTIONS = (
    "-T",
    *("-o", "BatchMode=yes"),  # never ask for a password: the prompt would be invisible
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
)


@dataclass(frozen=True)
class SshLauncher(HostsLauncher):
    """Launcher that runs processes on hosts over ssh.

    Attributes
    ----------
    ssh_config : str or None
        File for ssh's option ``-F``.
    """

    ssh_config: str | None = None

    def over(self, host: Host, script: str) -> Command:
        """Return an ssh command that runs the script."""
        config = () if self.ssh_config is None else ("-F", self.ssh_config)
        words = ("ssh", *config, *SSH_OPTIONS, host.name, f"exec /bin/sh -c {shlex.quote(script)}")
        return Command(words, dict(os.environ), host.name)

    def try_it(self, name: str) -> str:
        """Return a plain ssh command."""
        return f"ssh {name} true"


OPTIONS = ("hosts", "ssh_config")
"""Options of the command line that this place takes."""


def launcher_of(options: HostOptions) -> SshLauncher:
    """Return the launcher of a hosts file.

    Raises
    ------
    ConfigurationError
        When the hosts file is wrong or missing, or an option belongs to another place.
    """
    hosts = hosts_in_file(options)
    return SshLauncher(hosts, options.insecure_network, options.port, ssh_config=options.ssh_config)
