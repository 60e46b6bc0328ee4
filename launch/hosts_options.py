"""Options of what runs on several machines; `launch.ssh` reads them."""

from __future__ import annotations

import argparse

__all__ = ["add_hosts"]


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """The options that say on which machines a run's processes are."""
    parser.add_argument("--on", choices=("local", "ssh"), default="local", help="where (default: local)")
    parser.add_argument(
        "--hosts", metavar="FILE", help="for ssh: a line a host, HOST [servers=N] [trainers=N] ..."
    )
    parser.add_argument("--ssh-config", metavar="FILE", help="for ssh: given to it as -F FILE")
    parser.add_argument(
        "--insecure-network",
        action="store_true",
        help="for ssh: no encryption, though other machines reach coordinator and servers",
    )
