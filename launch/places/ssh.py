"""Hosts over ssh as places to run: one ssh connection a process; each ends when the other ends."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from launch.places.hosts import Host, HostsLauncher, read_hosts
from launch.supervisor.run_spec import Command
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


def ssh_hosts(options: argparse.Namespace) -> SshLauncher:
    """Return the launcher of a hosts file.

    Raises
    ------
    ConfigurationError
        When the hosts file is wrong, or an option belongs to another place.
    """
    if options.hosts is None:
        raise ConfigurationError("--on ssh needs --hosts FILE: a line a host, HOST [servers=N] [trainers=N]")
    if options.servers is not None or options.trainers is not None:
        raise ConfigurationError(
            "--servers and --trainers stand in the hosts file with --on ssh: servers=N trainers=N"
        )
    try:
        text = Path(options.hosts).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"{options.hosts}: the hosts file can't be read: {reason}") from error
    again = ["--on", "ssh", "--hosts", options.hosts]
    again += ["--ssh-config", options.ssh_config] if options.ssh_config else []
    again += ["--insecure-network"] if options.insecure_network else []
    return SshLauncher(
        read_hosts(text, options.hosts, str(Path.cwd())),
        options.insecure_network,
        options.port,
        shlex.join(again),
        options.ssh_config,
    )
