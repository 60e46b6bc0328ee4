"""How many files and sockets a process may have open: every peer of a server or a client costs some."""

from __future__ import annotations

import resource

from pslib.errors import ConfigurationError

__all__ = ["allow_peers", "files_for"]

FILES_OWN = 96
"""What a process has open without peers: 12 to 18 (2026-11-21), and data and log files as it works."""
FILES_A_PEER = 2
"""A connection (one more peer is one more file), and a second one for a moment when it is opened anew."""


def files_for(peers: int) -> int:
    """How many files a process must be allowed to have open, to talk to so many others."""
    return FILES_OWN + FILES_A_PEER * peers


def allow_peers(peers: int) -> None:
    """Make sure that this process can talk to so many others; raises its own limit where it may.

    Parameters
    ----------
    peers : int
        Processes that it will be connected with.

    Raises
    ------
    ConfigurationError
        When the system does not allow so many open files; past the limit ZeroMQ would end the process.
    """
    needed = files_for(peers)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigurationError(
            f"open files: {peers} peers need {needed}, and the limit is {hard}; raise it (ulimit -n "
            f"{needed}, or nofile in limits.conf)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
