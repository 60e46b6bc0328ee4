"""Hosts over ssh as places to run: one ssh connection a process; each ends when the other ends."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from launch.places.hosts import Host, HostsLauncher, read_hosts
from launch.supervisor.process import Command
from pslib.errors import ConfigurationError

__all__ = ["SshLauncher", "ssh_hosts"]

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


def ssh_hosts(file: str | None, ssh_config: str | None, insecure_network: bool, port: int) -> SshLauncher:
    """Return the launcher of a hosts file.

    Raises
    ------
    ConfigurationError
        When there is no hosts file, or it is wrong.
    """
    if file is None:
        raise ConfigurationError("--on ssh needs --hosts FILE: a line a host, HOST [servers=N] [trainers=N]")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{file}: the hosts file can't be read: {reason}") from error
    again = ["--on", "ssh", "--hosts", file]
    again += ["--ssh-config", ssh_config] if ssh_config else []
    again += ["--insecure-network"] if insecure_network else []
    hosts = read_hosts(text, file, str(Path.cwd()))
    return SshLauncher(hosts, insecure_network, port, shlex.join(again), ssh_config)
