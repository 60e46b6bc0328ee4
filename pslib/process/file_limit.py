"""Open-file limit of a process: every peer of a server or a client costs descriptors."""

from __future__ import annotations

import resource

from pslib.errors import ConfigurationError

__all__ = ["allow_peers", "files_for"]

FILES_OWN = 96
"""Files open without any peer: 12 to 18 (2026-11-21), plus data and log files."""
FILES_A_PEER = 2
"""Files per peer: one connection, and a second one briefly while it is reopened."""


def files_for(peers: int) -> int:
    """Return the number of open files that a process needs for this many peers."""
    return FILES_OWN + FILES_A_PEER * peers


def allow_peers(peers: int) -> None:
    """Ensure that this process may connect to this many peers; raise its limit where possible.

    Parameters
    ----------
    peers : int
        Number of processes to connect with.

    Raises
    ------
    ConfigurationError
        If the system does not allow that many open files; beyond its limit, ZeroMQ aborts the process.
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
