"""A process makes room for its peers' connections, or says what to raise."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from pslib.errors import ConfigurationError
from pslib.process.machine import allow_peers

TRY = """
import resource
from pslib.errors import ConfigurationError
from pslib.process.machine import allow_peers
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    allow_peers({peers})
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except ConfigurationError as error:
    print(error)
"""


def told(soft: int, hard: int, peers: int) -> str:
    code = TRY.format(soft=soft, hard=hard, peers=peers)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


@pytest.mark.parametrize(("peers", "limit"), [(10, "256"), (80, "256"), (81, "258"), (464, "1024")])
def test_the_soft_limit_rises_as_far_as_peers_need_it(peers, limit):
    """Two files a peer must be allowed."""
    assert told(256, 1024, peers) == limit


def test_a_limit_of_the_system_below_the_hard_one_is_told_too(monkeypatch):
    """As macOS has it: the hard limit has no end, and the system refuses all the same."""

    def refused(which, limits):
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refused)
    with pytest.raises(ConfigurationError, match="300 peers need 696, and the system allows fewer; raise"):
        allow_peers(300)


def test_a_hard_limit_that_is_too_low_is_told_with_what_to_do():
    line = "open files: 300 peers need 696, and the limit is 512; raise it (ulimit -n 696, or nofile in "
    assert told(256, 512, 300) == line + "limits.conf)"
