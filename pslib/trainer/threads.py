"""Threads that share out the tasks of one step."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

__all__ = ["ComputeThreads"]

Task = Callable[[], None]


class ComputeThreads:
    """Runs lists of tasks with a fixed number of threads, the caller's among them.

    Parameters
    ----------
    count : int
        At least 1; with 1 no thread is started.

    Notes
    -----
    Tasks are NumPy calls and kernels, which let go of the interpreter lock; each BLAS call must stay in its
    thread (`pslib.blas`). An executor of the standard library would make a future, a lock and a queue
    entry a task.
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
            The first that a task has raised; tasks that had not begun by then are left out.
        """
        helpers = self._go[: max(0, len(tasks) - 1)]
        # A count is handed out by one bytecode, so no two threads get the same task.
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
        """End the threads and wait until they have; nothing can be run after that."""
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
        except BaseException as error:  # whatever it is, the caller must hear of it
            self._error = self._error or error

    def _help(self, go: threading.Semaphore) -> None:
        while True:
            go.acquire()
            if self._over:
                return
            self._work()
            self._done.release()
