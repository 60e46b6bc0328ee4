"""Discrete-event simulation: events in time, shared cores, queues and network cards.

It reads no clock: time is a number that `Events` advances.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

__all__ = ["Cores", "Events", "Network", "Worker"]

Then = Callable[[], None]
DONE_S = 1e-12
"""Remaining work below this is finished; sums of floats leave such remainders."""


class Events:
    """Event queue; simultaneous events run in the order of scheduling."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Then]] = []
        self._number = 0

    def at(self, time_s: float, then: Then) -> None:
        """Schedule ``then`` for a time not yet past."""
        self._number += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._number, then))

    def run(self, until: Callable[[], bool]) -> None:
        """Run events until ``until`` holds or the queue is empty."""
        while self._heap and not until():
            self.now_s, _, then = heapq.heappop(self._heap)
            then()


class _Task:
    __slots__ = ("left_s", "rate", "then", "width")

    def __init__(self, work_s: float, width: float, then: Then) -> None:
        self.left_s, self.width, self.then, self.rate = work_s, width, then, 0.0


class Cores:
    """Cores of one machine, shared evenly by running tasks; no task gets more than its width.

    Attributes
    ----------
    busy_s : float
        Core seconds used.
    """

    def __init__(self, events: Events, cores: float) -> None:
        self._events, self._cores = events, cores
        self._tasks: list[_Task] = []
        self._since_s, self._version = 0.0, 0
        self.busy_s = 0.0

    def run(self, work_s: float, width: float, then: Then) -> None:
        """Run so many core seconds of work on at most ``width`` cores, then call ``then``."""
        if work_s <= DONE_S:
            self._events.at(self._events.now_s, then)
            return
        self._advance()
        self._tasks.append(_Task(work_s, width, then))
        self._share()

    def _advance(self) -> None:
        """Account for the work done since the last change."""
        passed_s = self._events.now_s - self._since_s
        self._since_s = self._events.now_s
        for task in self._tasks:
            task.left_s -= task.rate * passed_s
            self.busy_s += task.rate * passed_s

    def _share(self) -> None:
        """Assign each task its width or an even share of the remaining cores; schedule the first end."""
        free, waiting = self._cores, len(self._tasks)
        for task in sorted(self._tasks, key=lambda one: one.width):
            task.rate = min(task.width, free / waiting)
            free, waiting = free - task.rate, waiting - 1
        self._version += 1
        if self._tasks:
            version = self._version
            wait_s = min(max(task.left_s, 0.0) / task.rate for task in self._tasks)
            self._events.at(self._events.now_s + wait_s, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        # A remainder below the resolution of time counts as done: the next end would be at this same moment.
        least_s = max(DONE_S, self._events.now_s * 1e-14)
        over = [task for task in self._tasks if task.left_s <= least_s]
        self._tasks = [task for task in self._tasks if task.left_s > least_s]
        self._share()
        for task in over:
            task.then()


class Worker:
    """Thread: runs tasks one after the other on shared cores."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._waiting: deque[tuple[float, float, Then]] = deque()
        self._works = False

    def do(self, work_s: float, then: Then, width: float = 1.0) -> None:
        """Run a task after all earlier ones."""
        self._waiting.append((work_s, width, then))
        if not self._works:
            self._next()

    def _next(self) -> None:
        self._works = bool(self._waiting)
        if self._works:
            work_s, width, then = self._waiting.popleft()
            self._cores.run(work_s, width, lambda: self._done(then))

    def _done(self, then: Then) -> None:
        then()
        self._next()


class Network:
    """Machines with one network card each; a message occupies the sender's and the receiver's card.

    It occupies both at once if both are free (cut-through), else it waits for a busy one. A message between
    processes of one machine goes through memory, at the loopback's rate.
    """

    def __init__(
        self, events: Events, byte_s: tuple[float, ...], latency_s: float, own_byte_s: float
    ) -> None:
        self._events, self._byte_s, self._latency_s, self._own_byte_s = events, byte_s, latency_s, own_byte_s
        self._out_free, self._in_free = [0.0] * len(byte_s), [0.0] * len(byte_s)

    def send(self, source: int, target: int, count: float, then: Callable[[], None]) -> None:
        """Send so many bytes; call ``then`` when the last one has arrived."""
        now_s = self._events.now_s
        if source == target:
            self._events.at(now_s + count * self._own_byte_s, then)
            return
        out_s, in_s = count * self._byte_s[source], count * self._byte_s[target]
        starts_s = max(now_s, self._out_free[source])
        self._out_free[source] = starts_s + out_s
        first_s = starts_s + self._latency_s
        arrives_s = max(max(first_s, self._in_free[target]) + in_s, first_s + out_s)
        self._in_free[target] = arrives_s
        self._events.at(arrives_s, then)
