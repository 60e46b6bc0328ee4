"""Overlapped steps: compute threads begin the next step instead of waiting at the end of one.

A step comes in stages: lists of tasks, each of which needs all of the list before it. Two threads that share
a small batch seldom finish a stage at the same moment, least of all where a server or a reader takes one of
the cores for a while; so a thread without a task of the oldest step works on the next step.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Task = Callable[[], None]


class ComputeThreads:
    """Fixed number of threads, the caller's among them, that run lists of tasks.

    Parameters
    ----------
    count : int
        At least 1; with 1 no thread is started.

    Notes
    -----
    Tasks are NumPy calls and kernels, which release the GIL; each BLAS call must stay in its
    thread (`pslib.process.blas`). A standard-library executor would create a future, a lock and a queue
    entry per task.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"expected at least 1 thread, got {count}")
        self.count = count
        self._tasks: Sequence[Task] = ()
        self._next: Iterator[int] = iter(())
        self._error: BaseException | None = None
        self._over = False
        self._go = [threading.Semaphore(0) for _ in range(count - 1)]
        self._done = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._help, args=(go,), name=f"pslib-compute-{place + 1}", daemon=True)
            for place, go in enumerate(self._go)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, tasks: Sequence[Task]) -> None:
        """Run all tasks, each once, in any order, and return when all are done.

        Raises
        ------
        BaseException
            The first error that a task raised; tasks that had not begun by then are skipped.
        """
        helpers = self._go[: max(0, len(tasks) - 1)]
        # A count is taken by one bytecode, so no two threads get the same task.
        self._tasks, self._next, self._error = tasks, itertools.count(), None
        for go in helpers:
            go.release()
        self._work()
        for _ in helpers:
            self._done.acquire()
        self._tasks = ()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """End and join the threads; nothing can be run after that."""
        self._over = True
        for go in self._go:
            go.release()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            while (place := next(self._next)) < len(self._tasks):
                if self._error is not None:
                    return
                self._tasks[place]()
        except BaseException as error:  # any error must reach the caller
            self._error = self._error or error

    def _help(self, go: threading.Semaphore) -> None:
        while True:
            go.acquire()
            if self._over:
                return
            self._work()
            self._done.release()


SLOTS = 2
"""Concurrent steps. Each has its own scratch arrays, and a third one would find no idle thread."""

Stages: TypeAlias = Generator[Sequence[Task], None, Any]
"""Yields lists of tasks, each to run after the one before is done, and returns the outcome."""


@dataclass(slots=True, eq=False)
class _Step:
    """A started step."""

    stages: Stages
    slot: int
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    tasks: Sequence[Task] = ()
    given: int = 0
    """Number of started tasks of this stage."""
    left: int = 0
    """Number of unfinished tasks of this stage."""
    outcome: list[Any] = field(default_factory=list)
    """Empty until the step is over."""


class OverlappedSteps:
    """Thread pool for overlapping steps; the caller of `begin` only feeds it.

    Parameters
    ----------
    count : int
        Threads.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Signals tasks; the feeding thread is not woken for them."""
        self._room = threading.Condition(self._lock)
        """Signals that a step is over."""
        self._telling = threading.Lock()
        self._steps: deque[_Step] = deque()
        self._free = list(range(SLOTS))
        self._ended = False
        self._threads = [
            threading.Thread(target=self._work, name=f"pslib-compute-{place}", daemon=True)
            for place in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def begin(
        self,
        stages_of: Callable[[int], Stages],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Begin a step, when a slot is free.

        Parameters
        ----------
        stages_of : callable
            Returns the stages of the step with the arrays of a slot, 0 to ``SLOTS - 1``.
        done : callable
            Called with the outcome: in the order in which steps have begun, in any thread.
        failed : callable
            Called with the error of a task or of ``done``; no step completes after it.
        """
        with self._lock:
            self._room.wait_for(lambda: self._free or self._ended)
            if self._ended:
                return
            slot = self._free.pop()
        step = _Step(stages_of(slot), slot, done, failed)
        with self._lock:
            self._steps.append(step)
        self._go_on(step)

    def finish(self) -> None:
        """Wait until all started steps are done, or one has failed."""
        with self._lock:
            self._room.wait_for(lambda: not self._steps or self._ended)

    def close(self) -> None:
        """End and join the threads; unfinished steps never complete."""
        self._end()
        for thread in self._threads:
            thread.join()

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._changed.notify_all()
            self._room.notify_all()

    def _work(self) -> None:
        while (found := self._next_task()) is not None:
            step, task = found
            try:
                task()
                with self._lock:
                    step.left -= 1
                    over = step.left == 0
                if over:
                    self._go_on(step)
            except BaseException as error:  # any error must reach the caller
                try:
                    step.failed(error)  # first: else `finish` may return without an error
                finally:
                    self._end()
            del found, step, task  # release arrays while waiting for work

    def _next_task(self) -> tuple[_Step, Task] | None:
        """Wait for a task of the oldest step that has one; None at the end."""
        with self._lock:
            while not self._ended:
                for step in self._steps:
                    if step.given < len(step.tasks):
                        step.given += 1
                        return step, step.tasks[step.given - 1]
                self._changed.wait()
        return None

    def _go_on(self, step: _Step) -> None:
        """Start the next stage of a step; only the thread that ended the one before calls it."""
        tasks: Sequence[Task] = ()
        while not tasks:
            try:
                tasks = next(step.stages)
            except StopIteration as over:
                step.outcome.append(over.value)
                self._tell()
                return
        with self._lock:
            step.tasks, step.given, step.left = tasks, 0, len(tasks)
            self._changed.notify(len(tasks))

    def _tell(self) -> None:
        """Deliver the outcomes of the oldest steps, as far as they are complete."""
        with self._telling:
            while self._steps and self._steps[0].outcome:
                step = self._steps[0]
                step.done(step.outcome[0])
                with self._lock:
                    self._steps.popleft()
                    self._free.append(step.slot)
                    self._room.notify_all()
