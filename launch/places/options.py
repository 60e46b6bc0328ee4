"""Options of runs on several machines, and the launcher that they select."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pslib.errors import ConfigurationError

if TYPE_CHECKING:
    from launch.places.hosts import HostsLauncher

__all__ = ["add_hosts", "hosts_of", "place_names"]


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the machines of a run."""
    parser.add_argument(
        "--on",
        choices=("local", *place_names()),
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


def place_names() -> tuple[str, ...]:
    """Return the names of the places beside this machine: the modules here that define ``launcher_of``."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple(file.stem for file in files if "\ndef launcher_of(" in file.read_text(encoding="utf-8"))


def hosts_of(options: argparse.Namespace) -> HostsLauncher | None:
    """Return the launcher that the options select; None: this machine.

    Raises
    ------
    ConfigurationError
        When an option belongs to another place, or its value is wrong.
    UnavailableError
        When Slurm does not report the addresses of its nodes.
    """
    places = {name: import_module(f"launch.places.{name}") for name in place_names()}
    taken = places[options.on].OPTIONS if options.on in places else ()
    for name in dict.fromkeys(name for place in places.values() for name in place.OPTIONS):
        if getattr(options, name) is not None and name not in taken:
            of = " or ".join(on for on, place in places.items() if name in place.OPTIONS)
            raise ConfigurationError(f"{option_text(name)} is for --on {of}; leave one of them out")
    if options.on not in places:
        return None
    launcher: HostsLauncher = places[options.on].launcher_of(options)
    again = [
        word for name in taken if (given := getattr(options, name)) for word in (option_text(name), given)
    ]
    again += ["--insecure-network"] if options.insecure_network else []
    return replace(launcher, options=shlex.join(["--on", options.on, *again]))


def option_text(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"
