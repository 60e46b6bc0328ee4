"""Options of runs on several machines, and the launcher that they select."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pslib.errors import ConfigurationError

if TYPE_CHECKING:
    from launch.places.hosts import HostsLauncher

__all__ = ["add_hosts", "hosts_of"]


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the machines of a run."""
    parser.add_argument(
        "--on",
        choices=("local", "ssh", "slurm"),
        default="local",
        help="where (default: local); slurm: the nodes of the allocation that it is called in",
    )
    parser.add_argument(
        "--hosts", metavar="FILE", help="for ssh: a line a host, HOST [servers=N] [trainers=N] ..."
    )
    parser.add_argument("--ssh-config", metavar="FILE", help="for ssh: given to it as -F FILE")
    parser.add_argument(
        "--per-node",
        metavar="TEXT",
        help='for slurm: what runs on each node, "servers=N trainers=N" (default: one of each)',
    )
    parser.add_argument(
        "--insecure-network",
        action="store_true",
        help="for ssh and slurm: no encryption, though other machines reach coordinator and servers",
    )


def hosts_of(options: argparse.Namespace) -> HostsLauncher | None:
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
    if options.on == "ssh":
        from launch.places.ssh import ssh_hosts

        return ssh_hosts(options)
    if options.on == "slurm":
        from launch.places.slurm import slurm_nodes

        return slurm_nodes(options)
    return None
