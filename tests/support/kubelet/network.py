"""Network of the pods: a bridge, a network namespace and an address each, and a DNS server."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Dns", "Interface", "Network", "why_no_network"]

FIRST, LAST = 2, 254
"""Last numbers of the pods' addresses; the bridge has 1."""
A, AAAA, TTL_S = 1, 28, 5
FOUND, NO_SUCH_NAME = 0x8180, 0x8183


def ip(*words: str) -> None:
    """Run a command of iproute2.

    Raises
    ------
    OSError
        When it fails, with its last line.
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


INSTEAD = "manifests are read back in test_manifests.py, and the roles run without pods in test_roles.py"


def why_no_network() -> str:
    """Return why pods can't have networks of their own here; empty if they can."""
    if os.geteuid() != 0:
        return f"needs root, which makes namespaces; {INSTEAD}"
    try:
        with Network() as network:
            network.leave(network.join())
        subprocess.run(["unshare", "--mount", "--uts", "--pid", "--fork", "true"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"needs namespaces and bridges (iproute2, util-linux): {error}; {INSTEAD}"
    return ""


@dataclass(frozen=True, slots=True)
class Interface:
    """Network of a pod: its namespace's name and its address."""

    namespace: str
    address: str


class Network:
    """Bridge with pods; the first free one of 16, so that tests may run side by side."""

    def __enter__(self) -> Network:
        for number in range(16):
            self._bridge, self._prefix = f"kubelet{number}", f"10.213.{number}"
            with suppress(OSError):
                ip("link", "add", self._bridge, "type", "bridge")
                break
        else:
            raise OSError(
                "ip link add: none of 16 bridges could be made; remove old ones: ip link del kubelet0"
            )
        self.address = f"{self._prefix}.1"
        ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        # Its own hardware address: else it has the lowest of its pods', which changes as they come and go.
        ip("link", "set", self._bridge, "address", f"02:00:0a:d5:{number:02x}:01", "up")
        self._number = FIRST - 1
        self._joined: set[Interface] = set()
        return self

    def __exit__(self, *failure: object) -> None:
        for one in list(self._joined):
            self.leave(one)
        ip("link", "del", self._bridge)

    def join(self) -> Interface:
        """Make a network for a pod, with an address that none has had."""
        self._number += 1
        if self._number > LAST:
            raise OSError(f"expected at most {LAST - FIRST + 1} pods in a test")
        name = f"{self._bridge}-{self._number}"
        interface = Interface(name, f"{self._prefix}.{self._number}")
        with suppress(OSError):  # of a test that was killed
            ip("netns", "del", name)
        ip("netns", "add", name)
        self._joined.add(interface)
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", name, "master", self._bridge, "up")
        ip("-n", name, "addr", "add", f"{interface.address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "route", "add", "default", "via", self.address)
        return interface

    def leave(self, interface: Interface) -> None:
        """Remove the network of a pod: who talks to it gets no answer."""
        if interface in self._joined:
            self._joined.remove(interface)
            with suppress(OSError):  # it goes with its namespace, if no process is left there
                ip("link", "del", interface.namespace)
            ip("netns", "del", interface.namespace)


class Dns:
    """DNS server for pods: addresses of names, over UDP.

    Parameters
    ----------
    address : str
        Of this server, at port 53.
    lookup : callable
        Returns the addresses of a full name; empty if there is none.

    Attributes
    ----------
    delay_s : float
        Wait before each answer.
    stale : bool
        True: a name that was asked for before has the answer that it had.
    """

    def __init__(self, address: str, lookup: Callable[[str], list[str]]) -> None:
        self.delay_s, self.stale = 0.0, False
        self._lookup = lookup
        self._told: dict[str, list[str]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._thread = threading.Thread(target=self._serve, name="dns", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End its thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, and says that it is not connected
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, asker = self._socket.recvfrom(512)
            if not question:
                return
            answer = self._answer(question)
            if self.delay_s:
                threading.Timer(self.delay_s, self._send, (answer, asker)).start()
            else:
                self._send(answer, asker)

    def _send(self, answer: bytes, asker: tuple[str, int]) -> None:
        with suppress(OSError):  # the asker, or this server, has gone
            self._socket.sendto(answer, asker)

    def _answer(self, question: bytes) -> bytes:
        labels, at = [], 12
        while size := question[at]:
            labels.append(question[at + 1 : at + 1 + size].decode())
            at += 1 + size
        name = ".".join(labels).lower()
        (kind,) = struct.unpack_from("!H", question, at + 1)
        if not self.stale or not self._told.get(name):
            self._told[name] = self._lookup(name)
        found = self._told[name]
        records = [
            struct.pack("!HHHIH4s", 0xC00C, A, 1, TTL_S, 4, socket.inet_aton(address))
            for address in (found if kind == A else ())
        ]
        flags = FOUND if found else NO_SUCH_NAME
        head = question[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, 0)
        return head + question[12 : at + 5] + b"".join(records)
