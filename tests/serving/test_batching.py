"""Requests that wait are scored together, within their bounds."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pslib.clock import SystemClock
from pslib.serving.batching import Batcher, OverloadError, Scores
from tests.support.waiting import PATIENCE_S


def rows(*values: Any) -> pa.Table:
    return pa.table({"x": list(values)})


class Gate:
    """Scorer that returns its column, and waits until it may; `sizes` are the rows of its calls."""

    def __init__(self) -> None:
        self.open, self.begun, self.sizes = threading.Event(), threading.Semaphore(0), list[int]()

    def __call__(self, table: pa.Table) -> Scores:
        self.sizes.append(table.num_rows)
        self.begun.release()
        assert self.open.wait(PATIENCE_S)
        if "bad" in table["x"].to_pylist():
            raise ValueError("a bad value")
        return Scores(np.array(table["x"].to_pylist()))


class SetClock(SystemClock):
    """Clock that a test sets."""

    now = 0.0

    def now_s(self) -> float:
        return self.now


def batcher(gate: Gate, clock: SystemClock | None = None, **more: Any) -> Batcher:
    limits = {"rows_max": 4, "waiting_rows_max": 8, "deadline_s": 60.0, "threads": 1} | more
    return Batcher(gate, clock=clock or SystemClock(), **limits)


def begun(gate: Gate, one: Batcher, *values: Any) -> Any:
    """Submit a request, and wait until it is being scored: what comes after waits."""
    future = one.submit(rows(*values))
    assert gate.begun.acquire(timeout=PATIENCE_S)
    return future


def test_what_waits_is_scored_together_up_to_the_limit_and_each_gets_its_own() -> None:
    gate = Gate()
    one = batcher(gate)
    first = begun(gate, one, 1)
    others = [
        one.submit(rows(2, 3)),
        one.submit(rows(4)),
        one.submit(rows(5, 6)),
        one.submit(rows(*range(10, 12))),
    ]
    gate.open.set()
    assert first.result(PATIENCE_S).values.tolist() == [1]
    assert [other.result(PATIENCE_S).values.tolist() for other in others] == [[2, 3], [4], [5, 6], [10, 11]]
    assert gate.sizes == [1, 3, 4]
    one.close()


def test_a_request_above_the_limit_is_scored_alone() -> None:
    gate = Gate()
    gate.open.set()
    one = batcher(gate)
    assert one.submit(rows(*range(9))).result(PATIENCE_S).values.tolist() == list(range(9))
    one.close()


def test_tables_of_other_types_are_not_joined() -> None:
    gate = Gate()
    one = batcher(gate)
    begun(gate, one, 1)
    others = [one.submit(rows("a")), one.submit(rows(2))]
    gate.open.set()
    assert [other.result(PATIENCE_S).values.tolist() for other in others] == [["a"], [2]]
    assert gate.sizes == [1, 1, 1]
    one.close()


def test_a_request_with_bad_values_fails_alone() -> None:
    gate = Gate()
    one = batcher(gate)
    begun(gate, one, "first")
    good, bad, more = (one.submit(rows(value)) for value in ("good", "bad", "more"))
    gate.open.set()
    assert good.result(PATIENCE_S).values.tolist() == ["good"]
    assert more.result(PATIENCE_S).values.tolist() == ["more"]
    with pytest.raises(ValueError, match="a bad value"):
        bad.result(PATIENCE_S)
    one.close()


def test_rows_beyond_those_that_may_wait_are_refused_at_once() -> None:
    gate = Gate()
    one = batcher(gate)
    begun(gate, one, 1)
    waiting = one.submit(rows(*range(8)))
    with pytest.raises(OverloadError, match="8 rows wait, and at most 8 may"):
        one.submit(rows(9))
    assert one.waiting_rows == 8
    gate.open.set()
    waiting.result(PATIENCE_S)
    assert one.submit(rows(9)).result(PATIENCE_S).values.tolist() == [9]
    one.close()


def test_a_request_that_has_waited_too_long_is_not_scored() -> None:
    gate, clock = Gate(), SetClock()
    one = batcher(gate, clock, deadline_s=1.0)
    begun(gate, one, 1)
    late = one.submit(rows(2))
    clock.now = 1.5
    fresh = one.submit(rows(3))
    gate.open.set()
    with pytest.raises(OverloadError, match="waited longer than 1 s"):
        late.result(PATIENCE_S)
    assert fresh.result(PATIENCE_S).values.tolist() == [3]
    assert gate.sizes == [1, 1]
    one.close()


def test_a_request_whose_client_has_gone_is_not_scored() -> None:
    gate = Gate()
    one = batcher(gate)
    begun(gate, one, 1)
    gone, there = one.submit(rows(2)), one.submit(rows(3))
    assert gone.cancel()
    gate.open.set()
    assert there.result(PATIENCE_S).values.tolist() == [3]
    assert gate.sizes == [1, 1]
    one.close()


def test_what_waits_at_the_end_is_scored_and_nothing_after_it() -> None:
    gate = Gate()
    one = batcher(gate)
    begun(gate, one, 1)
    waiting = one.submit(rows(2))
    closing = threading.Thread(target=one.close)
    closing.start()
    gate.open.set()
    closing.join(PATIENCE_S)
    assert waiting.result(0).values.tolist() == [2]
    with pytest.raises(OverloadError, match="is leaving"):
        one.submit(rows(3))
