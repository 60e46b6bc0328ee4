"""A busy server shares its time between requests and the image of a save; the clock is the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pslib.server import snapshot_thread
from pslib.server.snapshot_thread import BUSY_S, COPIES_BYTES, RATE_BYTES_S, SnapshotTurns

PIECE = 1 << 20
REST_S = BUSY_S / 10
"""Between two requests of a server that is busy."""


class Cuts:
    """An image that never ends."""

    def __init__(self) -> None:
        self.active, self.begun, self.copied_bytes, self.copies_bytes = True, 1, 0, 0

    def step(self) -> bool:
        self.copied_bytes += PIECE
        return True


class World:
    """A shard thread's turns, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.cuts = 100.0, Cuts()
        monkeypatch.setattr(snapshot_thread, "time", SimpleNamespace(perf_counter=lambda: self.now_s))
        shard: Any = SimpleNamespace(cuts=self.cuts, stores={}, shards=1)
        self.turns = SnapshotTurns(shard)

    def written(self, seconds: float) -> int:
        """Bytes of the image in a time in which requests come and the thread is free between them."""
        before, end_s = self.cuts.copied_bytes, self.now_s + seconds
        while self.now_s < end_s:
            self.turns.served()
            for _ in range(1000):
                if not self.turns.step():
                    break
            self.now_s += REST_S
        return self.cuts.copied_bytes - before


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_busy_server_writes_at_its_pace(world: World) -> None:
    assert world.written(1.0) == pytest.approx(RATE_BYTES_S, rel=0.1)


def test_a_save_soon_after_another_has_the_same_pace(world: World) -> None:
    world.written(0.2)
    world.now_s += 0.5  # in which nothing was saved, and nothing may be made good
    world.cuts.begun += 1
    assert world.written(0.2) == pytest.approx(0.2 * RATE_BYTES_S, rel=0.1)


def test_a_server_without_requests_does_not_wait(world: World) -> None:
    world.written(0.1)
    world.now_s += 2 * BUSY_S
    assert all(world.turns.step() for _ in range(1000))


def test_a_save_whose_copies_grow_too_many_does_not_wait(world: World) -> None:
    world.written(0.1)
    world.cuts.copies_bytes = COPIES_BYTES + 1
    assert all(world.turns.step() for _ in range(1000))
