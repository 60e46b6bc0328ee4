"""TCP sockets that listen for HTTP, by IPv4, IPv6 or both."""

from __future__ import annotations

import socket
from errno import EINVAL

EVERYWHERE = ("", "::")
"""Hosts that stand for all addresses of this machine."""


def listening_socket(host: str, port: int, waiting: int | None = None) -> socket.socket:
    """Return a socket that listens at a host.

    Parameters
    ----------
    host : str
        Name or address. One of `EVERYWHERE` is all addresses of this machine: those of IPv6 and of IPv4, as a
        pod may have one kind only, and is asked by loopback of the other.
    port : int
        0 is any free one.
    waiting : int or None
        Connections that may wait to be accepted; None: as many as the system proposes.

    Raises
    ------
    OSError
        If there is no such address here, or it is taken.
    """
    if host in EVERYWHERE and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, backlog=waiting, dualstack_ipv6=True
        )
    family = socket.AF_INET
    if host not in EVERYWHERE:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        except UnicodeError as error:  # a label of a name that is empty or too long
            raise OSError(EINVAL, str(error)) from error
    return socket.create_server(("" if host in EVERYWHERE else host, port), family=family, backlog=waiting)


def url_host(host: str) -> str:
    """Return a host as an address has it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
