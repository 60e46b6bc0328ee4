"""The pieces of a discrete-event simulation: events in time, cores that are shared, queues, network cards.

Nothing here reads a clock: time is a number that `Events` moves forward.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

__all__ = ["Cores", "Events", "Network", "Worker"]

Then = Callable[[], None]
DONE_S = 1e-12
"""Work below this is done: sums of floats leave such rests."""


class Events:
    """What happens next; equal times go in the order in which they were planned."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Then]] = []
        self._number = 0

    def at(self, time_s: float, then: Then) -> None:
        """Plan ``then`` for a time that is not over."""
        self._number += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._number, then))

    def run(self, until: Callable[[], bool]) -> None:
        """Let things happen until ``until`` holds or nothing is planned."""
        while self._heap and not until():
            self.now_s, _, then = heapq.heappop(self._heap)
            then()


class _Task:
    __slots__ = ("left_s", "rate", "then", "width")

    def __init__(self, work_s: float, width: float, then: Then) -> None:
        self.left_s, self.width, self.then, self.rate = work_s, width, then, 0.0


class Cores:
    """The cores of one machine, shared evenly by what runs: no task gets more than its width.

    Attributes
    ----------
    busy_s : float
        Core seconds spent.
    """

    def __init__(self, events: Events, cores: float) -> None:
        self._events, self._cores = events, cores
        self._tasks: list[_Task] = []
        self._since_s, self._version = 0.0, 0
        self.busy_s = 0.0

    def run(self, work_s: float, width: float, then: Then) -> None:
        """Do so many core seconds of work on at most ``width`` cores at once, then call ``then``."""
        if work_s <= DONE_S:
            self._events.at(self._events.now_s, then)
            return
        self._advance()
        self._tasks.append(_Task(work_s, width, then))
        self._share()

    def _advance(self) -> None:
        """Work off what was done since the last change."""
        passed_s = self._events.now_s - self._since_s
        self._since_s = self._events.now_s
        for task in self._tasks:
            task.left_s -= task.rate * passed_s
            self.busy_s += task.rate * passed_s

    def _share(self) -> None:
        """Give each task its width or an even share of what the narrower ones leave; plan the first end."""
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
        # A rest that time can't resolve any more is none: the next end would be at this same moment.
        least_s = max(DONE_S, self._events.now_s * 1e-14)
        over = [task for task in self._tasks if task.left_s <= least_s]
        self._tasks = [task for task in self._tasks if task.left_s > least_s]
        self._share()
        for task in over:
            task.then()


class Worker:
    """A thread: does one thing after the other, on cores that it shares with others."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._waiting: deque[tuple[float, float, Then]] = deque()
        self._works = False

    def do(self, work_s: float, then: Then, width: float = 1.0) -> None:
        """Do this when all that came before is done."""
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
    """Machines with one card each: a message takes its time at the sender's and at the receiver's.

    Both at once where both are free (cut-through); a busy one makes it wait. Between processes of one machine
    it goes through memory, at the loopback's rate.
    """

    def __init__(
        self, events: Events, byte_s: tuple[float, ...], latency_s: float, own_byte_s: float
    ) -> None:
        self._events, self._byte_s, self._latency_s, self._own_byte_s = events, byte_s, latency_s, own_byte_s
        self._out_free, self._in_free = [0.0] * len(byte_s), [0.0] * len(byte_s)

    def send(self, source: int, target: int, count: float, then: Callable[[], None]) -> None:
        """Carry so many bytes; ``then`` is called when the last one is there."""
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
