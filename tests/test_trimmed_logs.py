"""`pslib forget` waits until logs hold nothing from before: by rounds of images, as heartbeats tell them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pslib.forgetting import TRIM_S, trim_logs
from pslib.protocol.messages import Message, TrimLog


class HandClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_s(self) -> float:
        return self.seconds

    def sleep_s(self, seconds: float) -> None:
        self.seconds += seconds


def told(*rounds: list[int] | None) -> Iterator[list[dict[str, Any]]]:
    """What looks at one server see, one after the other, and the last for ever; None: nothing is told yet."""
    for one in rounds:
        yield [{"address": "tcp://s"} | ({} if one is None else {"log_rounds": one})]
    while True:
        yield [{"address": "tcp://s"} | ({} if rounds[-1] is None else {"log_rounds": rounds[-1]})]


@pytest.mark.parametrize(
    ("looks", "left"),
    [
        ([[0], [0], [1]], []),
        ([[3, 3], [4, 3], [4, 4]], []),
        ([[0], [0]], ["tcp://s"]),
        ([None, None, [2], [2]], ["tcp://s"]),  # whoever begins has told nothing, and has done nothing yet
        ([None, None, [2], [2], [3]], []),
        ([None], ["tcp://s"]),
    ],
)
def test_a_log_is_trimmed_when_every_shard_has_written_images_since(
    looks: list[list[int] | None], left: list[str]
) -> None:
    asked: list[tuple[str, Message]] = []
    seen, clock = told(*looks), HandClock()
    assert trim_logs(lambda *one: asked.append(one), lambda: next(seen), clock) == left  # type: ignore[arg-type,func-returns-value]
    assert asked == [("tcp://s", TrimLog())]
    assert clock.seconds > TRIM_S if left else clock.seconds < 5
