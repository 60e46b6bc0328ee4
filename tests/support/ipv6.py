"""Whether this machine has IPv6, for the tests that need it."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest


def _has_loopback() -> bool:
    with suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


has_ipv6 = pytest.mark.skipif(
    not _has_loopback(), reason="needs the loopback address ::1; addresses are read in test_identity.py"
)
