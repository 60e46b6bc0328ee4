"""Durable acknowledgement: replies wait until what they say is durable; a pure state machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pslib.update_log import RollingLog


class DurableAck:
    """Queue of replies that wait until all records of their shards, as of then, are durable.

    So a second copy of a push waits for the records of the first one, too.

    Parameters
    ----------
    logs : sequence of RollingLog
        One a shard.
    wanted : callable
        Called when a reply begins to wait, to make the logs durable.
    """

    def __init__(self, logs: Sequence[RollingLog], wanted: Callable[[], None]) -> None:
        self._logs, self._wanted = logs, wanted
        self._waiting: deque[tuple[list[tuple[RollingLog, int]], Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def pass_when_durable(self, shards: Sequence[int], send: Callable[[], None]) -> None:
        """Call ``send`` when all current records of these shards are durable: perhaps at once."""
        needs = [(self._logs[index], self._logs[index].last) for index in shards]
        if _is_durable(needs):
            send()
            return
        self._waiting.append((needs, send))
        self._wanted()

    def look(self) -> None:
        """Send the replies whose records have become durable."""
        waiting, self._waiting = self._waiting, deque()
        for needs, send in waiting:
            if _is_durable(needs):
                send()
            else:
                self._waiting.append((needs, send))


def _is_durable(needs: Sequence[tuple[RollingLog, int]]) -> bool:
    return all(number <= log.durable for log, number in needs)
