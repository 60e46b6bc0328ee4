"""Unix sockets between processes of one machine: a link that listens at a TCP address has one beside it.

A message over a Unix socket costs the kernel less than one over the loopback address. The socket has an
abstract name made of the TCP address, so nothing has to be agreed upon: whoever is to connect to the address
looks whether the name lives. Such names belong to a network namespace, as addresses do, and vanish with their
process; Linux alone has them. Anybody may take one: what belongs to another user is not connected to. Beyond
the links nobody hears of it: peers are called by their TCP addresses.

A peer whose Unix socket breaks is reached by TCP for the rest of the link's life. To come back would mean to
hang up on a connection that works, with requests on their way that then wait until they are sent again; and
there is little to win: a server that is started again mostly has a new port, hence a new name, and what keeps
its address is the coordinator, with a heartbeat a second.

Who connects there does not ask every second whether the other end still lives, as by TCP: a process that ends
closes its socket, and there is no cable to be cut. With 128 servers and 64 trainers on one machine that would
be 8,192 questions a second and as many answers, a third of the CPU of all (`benchmarks/notebook/lanes.md`).
Servers ask as they do by TCP, every ten seconds: a child of a dead client may hold its sockets open.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys

from pslib.errors import ConfigurationError

__all__ = ["VARIABLE", "is_loopback", "is_ours", "tcp_address", "unix_address", "wanted"]

VARIABLE = "PSLIB_SAME_HOST"
"""Says tcp where processes of one machine shall do as those of several: to measure, or to look for faults."""

_SCHEME, _PREFIX = "ipc://@", "pslib-"
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group."""


def wanted() -> bool:
    """Whether the environment leaves the Unix sockets to us; ConfigurationError when it says neither."""
    said = os.environ.get(VARIABLE, "unix")
    if said not in ("unix", "tcp"):
        raise ConfigurationError(f"{VARIABLE}: expected unix or tcp, got {said!r:.80}")
    return said == "unix"


def unix_address(address: str) -> str | None:
    """What ZeroMQ calls the Unix socket beside a TCP address; None where there can't be one."""
    if sys.platform != "linux" or not address.startswith("tcp://"):
        return None
    return _SCHEME + _PREFIX + address.removeprefix("tcp://")


def tcp_address(address: str) -> str:
    """The TCP address that a Unix socket stands beside; any other address as it is."""
    beside = address.removeprefix(_SCHEME + _PREFIX)
    return address if beside == address else f"tcp://{beside}"


def is_ours(address: str) -> bool:
    """Whether a process of this user listens at what `unix_address` gave.

    It takes a connection to see. ZeroMQ at the other end drops it, as it says nothing.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as trial:
            trial.connect("\0" + address.removeprefix(_SCHEME))
            found = trial.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:  # nobody is there, its queue is full, or no such sockets are allowed
        return False
    _process, user, _group = _CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())


def is_loopback(address: str) -> bool:
    """Whether an address such as ``tcp://127.0.0.1:0`` can be reached from this machine only."""
    if not address.startswith("tcp://"):
        return address.startswith(("ipc://", "inproc://"))
    host = address[len("tcp://") :].rsplit(":", 1)[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
