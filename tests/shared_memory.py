"""Both ends of a lane with shared memory, for the tests of either."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cython_ext.shared_frames import SharedFrames
from cython_ext.shared_views import SharedViews
from tests.test_lanes import End, lane_to

__all__ = [
    "FRAME_BYTES_MAX",
    "HEAD",
    "LAID_FROM",
    "REGION",
    "Pair",
    "as_bytes",
    "large",
    "pair",
    "region_file",
    "told",
]

HEAD, LAID_FROM = 64, 1 << 16
REGION = 1 << 17
"""What a message of so few bytes gets."""
FRAME_BYTES_MAX = 64 << 20


class Pair:
    """Both ends of a lane, with shared memory: what a client lays a server takes."""

    def __init__(self, name: bytes, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.server, self.client, self.name = End(), End(), name
        assert self.server.lanes.listen(name)
        self.asks = self.client.lanes.shared = SharedFrames(self.client.lanes, frame_bytes_max)
        self.takes = self.server.lanes.shared = SharedViews(frame_bytes_max)
        self.lane = lane_to(name, self.server, self.client)
        self.asks.begin(self.lane, "server")

    def settle(self) -> None:
        """Let both ends hear what lanes tell."""
        for end in (self.server, self.client):
            while end.is_woken:
                assert end.lanes.receive(1) == []

    def ask(self, frames: list[Any]) -> Any:
        """What the server takes of frames that the client lays; None: they are not for it."""
        placard = self.asks.lay("server", frames)
        self.asks.settle(True)
        self.settle()
        return None if placard is None else self.takes.taken(placard)

    def close(self) -> None:
        self.server.close()
        self.client.close()


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    one = Pair(f"pslib-shared-{os.getpid()}-{request.node.name}"[:90].encode())
    yield one
    one.close()


def large(number: int, size: int = LAID_FROM) -> np.ndarray[Any, Any]:
    return np.full(size, number % 251, np.uint8)


def as_bytes(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


def region_file(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def told(token: bytes, number: int, size: int) -> bytes:
    return b"\0" + token + struct.pack("<QQ", number, size)
