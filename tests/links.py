"""How tests of transports take what comes in, whichever kind of link they have."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["LOOPBACK", "WAIT_S", "come", "poll", "poll_all"]

WAIT_S = 10.0
LOOPBACK = "tcp://127.0.0.1:0"


def poll_all(link: Any, count: int) -> list[tuple[Any, list[bytes]]]:
    """The next ``count`` messages."""
    came: list[tuple[Any, list[bytes]]] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(came) < count:
        assert time.monotonic() < deadline_s, f"{len(came)} of {count} messages came in {WAIT_S} s"
        came += [(peer, [bytes(frame) for frame in frames]) for peer, frames in come(link, 0.1)]
    assert len(came) == count
    return came


def come(link: Any, timeout_s: float) -> list[Any]:
    """Messages of a link of either kind; waits for one."""
    if hasattr(link, "poll"):
        return link.poll(timeout_s)
    if not link.ready():
        link.wait(timeout_s)
    return link.receive()


def poll(link: Any) -> tuple[Any, list[bytes]]:
    (one,) = poll_all(link, 1)
    return one
