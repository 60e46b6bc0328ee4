"""Unix sockets between processes of one machine: a link that listens at a TCP address has one beside it.

A message over a Unix socket costs the kernel less than one over the loopback address. The socket has an
abstract name made of the TCP address, so no agreement is needed: a process that connects to the address
checks whether the name exists. Such names belong to a network namespace, as addresses do, and vanish with
their process; only Linux has them. Any user may take one: a name of another user is not connected to. Only
the links use these names: peers are called by their TCP addresses.

A peer whose Unix socket breaks is reached by TCP for the rest of the link's life. To come back would mean to
close a connection that works, with requests in flight that then wait for a retry. There is little to win: a
restarted server mostly has a new port, hence a new name, and what keeps its address is the coordinator, with
a heartbeat a second.

A client of such a socket does not check every second whether the other end is alive, as by TCP: a process
that ends closes its socket, and there is no cable to be cut. With 128 servers and 64 trainers on one machine
that would be 8,192 checks a second and as many replies, a third of the CPU of all
(`benchmarks/notebook/lanes.md`). Servers check as by TCP, every ten seconds: a child of a dead client may
hold its sockets open.
"""

from __future__ import annotations

import ipaddress
import os
import socket

from pslib.errors import ConfigurationError
from pslib.process.platform import ABSTRACT_SOCKETS, listening_user

VARIABLE = "PSLIB_SAME_HOST"
"""Value tcp disables Unix sockets on one machine, for measurements or to look for faults."""

_SCHEME, _PREFIX = "ipc://@", "pslib-"


def wanted() -> bool:
    """Return whether the environment allows Unix sockets; ConfigurationError for an unknown value."""
    said = os.environ.get(VARIABLE, "unix")
    if said not in ("unix", "tcp"):
        raise ConfigurationError(f"{VARIABLE}: expected unix or tcp, got {said!r:.80}")
    return said == "unix"


def unix_address(address: str) -> str | None:
    """Return ZeroMQ's address of the Unix socket beside a TCP address; None where there is none."""
    if not ABSTRACT_SOCKETS or not address.startswith("tcp://"):
        return None
    return _SCHEME + _PREFIX + address.removeprefix("tcp://")


def tcp_address(address: str) -> str:
    """Return the TCP address that a Unix socket belongs to; any other address unchanged."""
    beside = address.removeprefix(_SCHEME + _PREFIX)
    return address if beside == address else f"tcp://{beside}"


def is_ours(address: str) -> bool:
    """Return whether a process of this user listens at an address of `unix_address`.

    The check needs a connection. ZeroMQ at the other end drops it, as it sends nothing.
    """
    return listening_user(address.removeprefix(_SCHEME)) == os.geteuid()


def _host_of(address: str) -> str:
    """Return the host of a TCP address, IPv6 without its brackets."""
    return address.removeprefix("tcp://").rsplit(":", 1)[0].strip("[]")


def wants_ipv6(address: str) -> bool:
    """Return whether ZeroMQ must speak IPv6 to listen at an address, or to connect to it.

    With IPv6 it prefers an address of that to one of IPv4 which the same name has, and tries no other. So a
    name has IPv6 only where this machine has no way to others by IPv4, as a pod of a cluster of IPv6 alone.
    """
    if not address.startswith("tcp://") or is_loopback(address):
        return address.startswith("tcp://[")
    try:
        return ipaddress.ip_address(_host_of(address)).version == 6
    except ValueError:
        return not _has_ipv4()


def _has_ipv4() -> bool:
    """Return whether there is a route to other machines by IPv4; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            trial.connect(("192.0.2.1", 1))  # of a block that no machine has (RFC 5737)
    except OSError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return whether an address such as ``tcp://127.0.0.1:0`` can be reached from this machine only."""
    if not address.startswith("tcp://"):
        return address.startswith(("ipc://", "inproc://"))
    host = _host_of(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
