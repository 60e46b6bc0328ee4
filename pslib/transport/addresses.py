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


def is_loopback(address: str) -> bool:
    """Return whether an address such as ``tcp://127.0.0.1:0`` can be reached from this machine only."""
    if not address.startswith("tcp://"):
        return address.startswith(("ipc://", "inproc://"))
    host = address[len("tcp://") :].rsplit(":", 1)[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
