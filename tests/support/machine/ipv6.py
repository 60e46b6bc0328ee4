"""Skip of tests that need IPv6, on a machine without it."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest


def _has_loopback() -> bool:
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


has_ipv6 = pytest.mark.skipif(
    not _has_loopback(), reason="the test connects to ::1, and the kernel of this machine has no IPv6"
)
