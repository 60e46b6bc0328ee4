"""Receiving in tests of transports, the same for every kind of link."""

from __future__ import annotations

from typing import Any

from tests.support.waiting import WAIT_S, wait_until

__all__ = ["LOOPBACK", "come", "poll", "poll_all"]

LOOPBACK = "tcp://127.0.0.1:0"


def poll_all(link: Any, count: int) -> list[tuple[Any, list[bytes]]]:
    """The next ``count`` messages."""
    came: list[tuple[Any, list[bytes]]] = []

    def all_came() -> bool:
        came.extend((peer, [bytes(frame) for frame in frames]) for peer, frames in come(link, 0.1))
        return len(came) >= count

    if count:
        wait_until(all_came, WAIT_S, lambda: f"{count} messages, of which {len(came)} came", pause_s=0)
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
