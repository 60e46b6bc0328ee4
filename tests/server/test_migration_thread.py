"""A server's thread that hands units over: what it keeps when all of them have moved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from pslib.client.pending import Pending
from pslib.clock import SystemClock
from pslib.errors import PslibError
from pslib.server.migration_thread import MigrationThread
from pslib.wire.messages import Hand, Message
from tests.support.simulated.protocol_worlds import setup_of
from tests.support.waiting import PATIENCE_S

COORDINATOR, DEAD = "tcp://coordinator:1", "tcp://dead:1"


class Endpoint:
    """Whoever it asks but the coordinator never answers; remembers what it is told to forget."""

    def __init__(self, answers: list[Hand]) -> None:
        self._answers = answers
        self._waits: dict[str, list[Pending[Message]]] = {}
        self.done: list[tuple[str, str]] = []

    def ask(self, address: str, message: Message, _patience_s: float) -> Pending[Message]:
        pending = Pending[Message](type(message).__name__)
        if address == COORDINATOR:
            pending.succeed(self._answers.pop(0))
        else:
            self.done.append(("asked", address))
            self._waits.setdefault(address, []).append(pending)
        return pending

    def end_waits_for(self, address: str, error: PslibError) -> None:
        self.done.append(("ended", address))
        for pending in self._waits.pop(address, []):
            pending.fail(error)

    def forget(self, address: str) -> None:
        self.done.append(("forgot", address))


def test_nothing_is_kept_for_a_server_that_died_on_the_way_when_all_moves_are_over() -> None:
    """Images of up to a GiB stayed in the queue to it for as long as this server lived."""
    no_units, unit = np.zeros(0, np.uint32), np.asarray([3], np.uint32)
    hands = [
        Hand("hand", 2, ["tcp://me:1", DEAD], unit, np.ones(1, np.uint16)),
        Hand("done", 2, [], no_units, np.zeros(0, np.uint16)),
    ]
    endpoint: Any = Endpoint(hands)
    member: Any = SimpleNamespace(rank=0, incarnation=7, coordinator=COORDINATOR)
    published: list[int] = []
    work = MigrationThread(
        endpoint,
        member,
        SystemClock(),
        lambda _message, _taker: None,
        lambda: setup_of(t=1),
        published.append,
    )
    work.begin()
    assert work._thread is not None
    work._thread.join(PATIENCE_S)
    assert published == [1, 2]
    assert endpoint.done == [("asked", DEAD), ("ended", DEAD), ("forgot", DEAD)]
