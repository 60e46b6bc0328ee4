"""Monitor of ZeroMQ connections: turns its events into named connection errors.

A wrong key, or encryption on one side only, is a silent hang in ZeroMQ: messages wait for a connection that
never comes. Only the monitor of a socket reports the fault.
"""

from __future__ import annotations

import ipaddress
import itertools
import logging
import socket as sockets
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import parse_monitor_message

from pslib.transport.addresses import tcp_address

log = logging.getLogger(__name__)
EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)
SUSPICIOUS = 3
"""Failed handshakes that count as a fault. A server that dies in a handshake fails one of them; a wrong key
fails them all, at first 20 a second.

Where only one side encrypts, both see it, but the side that closes first leaves the other without a reason.
"""
REFUSED_KEY = (
    "it refused this key: it knows no such {role}; use a key of its folder, and start it again when the key "
    "was added after its start"
)
PROBE_S = 0.3
"""Timeout of a greeting: one round trip."""
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0"
"""Signature and version of ZMTP 3.0 (https://rfc.zeromq.org/spec/23). A peer answers them with all of its own
greeting; a mechanism after them that is not its own would make it close first.
"""
GREETING_BYTES = 64
"""Signature, version, 20 bytes of mechanism, as-server, filler."""

_numbers = itertools.count(1)


@dataclass(slots=True)
class Monitor:
    """Monitor of one socket's events.

    Its pipe is without bound: a full one would block the thread of ZeroMQ that moves all bytes. So `events`
    must be called regularly.

    Attributes
    ----------
    watched : zmq.Socket
    failures : dict of str to int
        By address: failed handshakes since the last successful one.
    refused : int
        All failed handshakes, of a socket that listens.
    broken : set of str
        TCP addresses beside Unix sockets from which a connection has been lost; the reader clears it.
    """

    watched: zmq.Socket[bytes]
    failures: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    broken: set[str] = field(default_factory=set)
    _pipe: zmq.Socket[bytes] | None = None

    def __post_init__(self) -> None:
        address = f"inproc://pslib-monitor-{next(_numbers)}"
        self.watched.monitor(address, EVENTS)
        self._pipe = self.watched.context.socket(zmq.PAIR)
        self._pipe.rcvhwm = 0
        self._pipe.linger = 0
        self._pipe.connect(address)

    def events(self) -> Iterator[tuple[zmq.Event, str]]:
        """Yield handshakes since the last call, with their addresses: for a Unix socket its TCP address.

        Handshakes at Unix sockets that end without data are left out: so ends a check whether one exists, and
        a client goes on with TCP, where it learns the fault.
        """
        assert self._pipe is not None
        with suppress(zmq.Again):
            while True:
                told = parse_monitor_message(self._pipe.recv_multipart(zmq.NOBLOCK))
                event, where = zmq.Event(told["event"]), bytes(told["endpoint"]).decode("ascii", "replace")
                address = tcp_address(where)
                if where != address and event == zmq.EVENT_DISCONNECTED:
                    self.broken.add(address)
                looked = where != address and event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                if looked or event == zmq.EVENT_DISCONNECTED:
                    continue
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self.failures.pop(address, None)
                else:
                    self.failures[address] = self.failures.get(address, 0) + 1
                yield event, address

    def count_failures(self, address: str) -> None:
        """Log, for a socket that listens, how many could not connect, ever more rarely."""
        before = self.refused
        failed = sum(event != zmq.EVENT_HANDSHAKE_SUCCEEDED for event, _address in self.events())
        self.failures.clear()
        self.refused += failed
        if failed and (before == 0 or len(str(before)) < len(str(self.refused))):
            log.warning(
                "pslib: %s has refused %d connections: no key, an unknown one, or no ZeroMQ at all",
                address,
                self.refused,
            )

    def close(self) -> None:
        """Stop, before the socket is closed."""
        if self._pipe is not None:
            self.watched.disable_monitor()
            self._pipe.close(linger=0)
            self._pipe = None


def troubles(monitor: Monitor, silent: Set[str], role: str | None) -> dict[str, str]:
    """Return by peer the fault that keeps this process from the server there, to be read after its name.

    Parameters
    ----------
    monitor : Monitor
        Monitor of the socket that is connected to all of them.
    silent : set of str
        Addresses that have not answered yet.
    role : str or None
        Role of this process's key; None when it has none.
    """
    found: dict[str, str | None] = {}
    for event, address in list(monitor.events()):
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            found[address] = REFUSED_KEY.format(role=role)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            found[address] = mismatch(role, "CURVE" if role is None else "NULL")
    for address, failures in list(monitor.failures.items()):
        if address not in found and failures >= SUSPICIOUS:
            monitor.failures[address] = 0
            found[address] = mismatch(role, mechanism_at(address))
    told = {address: reason for address, reason in found.items() if reason is not None}
    return {peer: reason for address, reason in told.items() for peer in silent if _is_at(peer, address)}


def _is_at(peer: str, address: str) -> bool:
    """Return whether the connected peer may be at an address, which ZeroMQ gives in numbers."""
    if peer == address:
        return True
    host, _, port = peer.removeprefix("tcp://").rpartition(":")
    if port != address.rpartition(":")[2]:
        return False
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:  # a name: it may be any address
        return True
    return False


def mismatch(role: str | None, mechanism: str) -> str | None:
    """Return the mismatch between a process's key (its role; None: no key) and a server's encryption."""
    if role is None and mechanism == "CURVE":
        return "it is encrypted and this process has no key; give it one with --keys, keys= or PSLIB_KEYS"
    if role is not None and mechanism == "NULL":
        return "it speaks without encryption, this cluster is encrypted; is it another cluster's?"
    if role is not None and mechanism == "CURVE":
        return f"it has another server key than this {role}'s file says; is it another cluster's?"
    return None


def mechanism_at(address: str) -> str:
    """Return the mechanism in a server's greeting: "CURVE", "NULL", or "" without a greeting.

    A server that can't read a client's first message closes the connection, and so does a proxy whose server
    is gone; only the server sends a greeting.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with suppress(OSError, ValueError):
        with sockets.create_connection((host.strip("[]"), int(port)), PROBE_S) as plain:
            plain.settimeout(PROBE_S)
            plain.sendall(GREETING)
            greeting = b""
            while len(greeting) < GREETING_BYTES and (more := plain.recv(GREETING_BYTES - len(greeting))):
                greeting += more
        return greeting[12:32].rstrip(b"\0").decode("ascii", "replace")
    return ""
