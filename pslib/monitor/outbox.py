"""Outbox: a thread that delivers what a callback sends, so that no slow peer holds up a run."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pslib.text import counted, one_line

log = logging.getLogger(__name__)

WAITING_MAX = 1000
"""Most items that wait, half a megabyte of records: those of the last quarter of an hour."""


class Outbox:
    """Thread that delivers items one after the other; it never raises.

    When it is full, the oldest item that waits is left out: the last one is the end of a run.

    The first failure is logged when it happens, and the number of items that were not delivered at the end.

    Parameters
    ----------
    name : str
        For messages.
    deliver : callable
        Delivers one item; called in the outbox's thread. An exception means that it was not delivered.
    last_s : float
        Most seconds that `close` waits for the delivery of what is left.
    """

    def __init__(self, name: str, deliver: Callable[[Any], None], last_s: float) -> None:
        self._name, self._deliver, self._last_s = name, deliver, last_s
        self._waiting: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closing, self._lost, self._told = False, 0, False
        self._under_way = False
        self.given_up = threading.Event()
        """Set when `close` waits no longer; a delivery that pauses waits for it."""
        self._thread = threading.Thread(target=self._run, name=f"pslib-{name}", daemon=True)
        self._thread.start()

    def put(self, item: Any) -> None:
        """Leave an item to be delivered; returns at once."""
        with self._changed:
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self._lost += 1
            self._waiting.append(item)
            self._changed.notify()

    def close(self) -> None:
        """Deliver what is left, in bounded time."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(self._last_s)
        self.given_up.set()
        with self._changed:
            lost = self._lost + len(self._waiting) + self._under_way
            self._waiting.clear()
        if lost:
            log.warning(
                "pslib: %s: %s not delivered", self._name, counted(lost, "message was", "messages were")
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._under_way = False
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                item, self._under_way = self._waiting.popleft(), True
            try:
                self._deliver(item)
            except Exception as error:  # of any library: the run goes on
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        with self._changed:
            self._lost += 1
        if not self._told:
            self._told = True
            why = f"{type(error).__name__}: {one_line(error)}"
            log.warning("pslib: %s: %s; the run goes on, later messages are still sent", self._name, why)
