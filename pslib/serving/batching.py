"""Requests that wait are scored together: a bounded queue with a deadline."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.clock import Clock
from pslib.errors import PslibError


class Scores(NamedTuple):
    """Scores of the rows of a table, and the version of followed parameters that made them.

    ``as_of_s`` is None where the model follows no cluster.
    """

    values: NDArray[np.float32]
    version: int = 0
    as_of_s: float | None = None


Predict = Callable[[pa.Table], Scores]


class OverloadError(PslibError):
    """More rows wait than may; the caller may try again later."""


@dataclass(slots=True, eq=False)
class _Waiting:
    table: pa.Table
    since_s: float
    done: Future[Scores] = field(default_factory=Future)


class Batcher:
    """Scorer of requests, together where several wait.

    A thread takes all that waits, up to ``rows_max`` rows, scores it in one call, and takes again: the busier
    it is, the larger its batches; an idle one lets no request wait for company. Tables with other columns or
    types than the first one are left for the next call.

    Parameters
    ----------
    predict : callable
        Scores a table; called by several threads at once.
    rows_max : int
        Rows that are scored together; a larger request is scored alone.
    waiting_rows_max : int
        Rows that may wait; beyond, `submit` raises `OverloadError`.
    deadline_s : float
        A request that has waited longer is not scored: its client has given up.
    threads : int
    clock : Clock
    """

    def __init__(
        self,
        predict: Predict,
        *,
        rows_max: int,
        waiting_rows_max: int,
        deadline_s: float,
        threads: int,
        clock: Clock,
    ) -> None:
        self._predict, self._clock = predict, clock
        self._rows_max, self._waiting_rows_max, self._deadline_s = rows_max, waiting_rows_max, deadline_s
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.waiting_rows = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"pslib-scorer-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, table: pa.Table) -> Future[Scores]:
        """Queue a request; the result is its scores.

        Raises
        ------
        OverloadError
            If too many rows wait, or the server is leaving.
        """
        one = _Waiting(table, self._clock.now_s())
        with self._changed:
            if self._closed:
                raise OverloadError("the server is leaving; ask another one")
            if self.waiting_rows and self.waiting_rows + table.num_rows > self._waiting_rows_max:
                raise OverloadError(
                    f"{self.waiting_rows} rows wait, and at most {self._waiting_rows_max} may"
                )
            self._waiting.append(one)
            self.waiting_rows += table.num_rows
            self._changed.notify()
        return one.done

    def stop(self) -> None:
        """Take no more; the threads end when what waits is scored."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Score what waits, and end the threads; not for one of them to call."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while some := self._take():
            oldest_s, fresh = self._clock.now_s() - self._deadline_s, []
            for one in some:
                if not one.done.set_running_or_notify_cancel():
                    continue
                if one.since_s < oldest_s:
                    late = f"the request has waited longer than {self._deadline_s:g} s"
                    one.done.set_exception(OverloadError(late))
                else:
                    fresh.append(one)
            if fresh:
                self._score(fresh)

    def _take(self) -> list[_Waiting]:
        """Wait for requests, and take those that are scored together; none: the end."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            some: list[_Waiting] = []
            rows = 0
            while self._waiting and (not some or self._fits(some[0], rows)):
                some.append(self._waiting.popleft())
                rows += some[-1].table.num_rows
            self.waiting_rows -= rows
            return some

    def _fits(self, first: _Waiting, rows: int) -> bool:
        table = self._waiting[0].table
        return rows + table.num_rows <= self._rows_max and table.schema.equals(first.table.schema)

    def _score(self, some: list[_Waiting]) -> None:
        try:
            tables = [one.table for one in some]
            # in one chunk a column: each chunk would be read for itself
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
            scores = self._predict(table)
        except Exception as error:
            if len(some) == 1:
                some[0].done.set_exception(error)
                return
            for one in some:  # one has bad values: the others must not fail with it
                self._score([one])
            return
        start = 0
        for one in some:
            stop = start + one.table.num_rows
            one.done.set_result(scores._replace(values=scores.values[start:stop]))
            start = stop
