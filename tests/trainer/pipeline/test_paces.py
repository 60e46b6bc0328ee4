"""Limits on a trainer's lead: permits, the bound over the slowest, windows of a copy; without a cluster."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pslib
from pslib.batch import Batch
from pslib.client.calls import Moment, PushName
from pslib.client.pending import Pulled
from pslib.table.initializers import Constant
from pslib.table.optimizers import SGD
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from pslib.trainer.collective import HeldLease
from pslib.trainer.consistency.geo import GeoCopy, GeoPace, GeoRows
from pslib.trainer.consistency.ssp import SspPace
from pslib.trainer.pipeline.pace import AsyncPace, LeasePlan, Pace, StalenessBound
from pslib.trainer.pipeline.row_source import ComputedBatch
from pslib.wire.messages import Clocks
from tests.support.counting import CountingModel, CountStep, write_examples
from tests.support.training import counts_of, examples_counted, trainer_on

OVER = threading.Event()
OVER.set()  # a trainer that would have to wait is sent home


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pipeline.pace", "consistency.geo"):
        monkeypatch.setattr(f"pslib.trainer.{module}.TURN_S", 0.001)


def begun(pace: Pace, first: int = 0, stream: int = 1) -> list[int]:
    """Begin as many batches of a lease as the pace lets through; how stale each may be."""
    found: list[int] = []
    lease = HeldLease(stream, 0, 0, 0)
    while len(found) < 100 and (one := pace.enter(lease, first + len(found), OVER)) is not None:
        found.append(one)
    return found


def applied(pace: Pace, times: int) -> None:
    for _ in range(times):
        pace.applied()


# --- async


def test_a_batch_begins_when_no_more_are_on_their_way_than_it_may_run_ahead() -> None:
    pace = AsyncPace(StalenessBound(2, warmup_batches=6))  # 0, 0, 1, 1, 1, 2, 2, ... ahead
    assert begun(pace) == [0]
    assert begun(pace) == []  # and one sent home has not taken another's place in the warm-up
    applied(pace, 1)
    assert begun(pace) == [0, 1]
    applied(pace, 1)
    assert begun(pace) == [1]
    applied(pace, 1)
    assert begun(pace) == [1, 2]
    applied(pace, 3)
    assert begun(pace) == [0, 1, 2]


def test_a_batch_that_may_not_run_ahead_waits_for_all_before_it_though_the_one_before_it_did_not() -> None:
    pace = AsyncPace(StalenessBound(1, warmup_batches=12))  # the first is exact, 5 runs ahead, 6 does not
    for _ in range(5):
        assert pace.enter(HeldLease(1, 0, 0, 0), 0, OVER) == 0
        applied(pace, 1)
    assert len(begun(pace)) == 1
    assert begun(pace) == []
    applied(pace, 1)
    assert begun(pace) == [0, 1]


def test_a_training_that_goes_on_has_the_bound_that_it_had() -> None:
    whole, rest = StalenessBound(2, warmup_batches=9), StalenessBound(2, warmup_batches=9)
    for _ in range(5):
        whole.batch_begun()
    rest.go_on(5)
    for _ in range(6):
        assert rest.now == whole.now
        whole.batch_begun()
        rest.batch_begun()
    rest.go_on(3)  # a load of an older checkpoint does not begin it again
    assert rest.now == 2


def test_a_waiting_trainer_goes_on_as_soon_as_a_push_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslib.trainer.pipeline.pace.TURN_S", 30.0)
    pace, waited = AsyncPace(StalenessBound(0, 0)), threading.Event()
    lease, over = HeldLease(1, 0, 0, 0), threading.Event()
    assert pace.enter(lease, 0, over) == 0

    def wait() -> None:
        assert pace.enter(lease, 1, over) == 0
        waited.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not waited.wait(0.05)
    applied(pace, 1)
    assert waited.wait(10.0)


# --- ssp


class Coordinator:
    """Tells a trainer what it wants, and remembers what it has been told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.led: list[int] = []
        self.mine = self.slowest = 0

    def tell(self, clock: int) -> Any:
        self.told.append(clock)
        assert len(self.told) < 50, "it asks again and again"
        answer = Clocks(max(clock, self.mine), self.slowest)
        return SimpleNamespace(wait=lambda _patience_s=None: answer, on_done=lambda call: call())

    def pace(self, bound: int) -> SspPace:
        return SspPace(StalenessBound(50, 0), bound, self.tell, self.led.append)


def test_no_batch_is_begun_that_is_further_ahead_of_the_slowest_than_the_bound() -> None:
    coordinator = Coordinator()
    pace = coordinator.pace(2)
    assert len(begun(pace)) == 3
    coordinator.slowest = 4
    for number in range(3, 7):
        assert pace.enter(HeldLease(1, 0, 0, 0), number, threading.Event()) is not None
    assert begun(pace) == []
    assert coordinator.led == [0, 1, 2, -1, 0, 1, 2]


def test_the_slowest_tells_its_clock_twice_in_the_length_of_the_bound_though_it_asks_nothing() -> None:
    coordinator = Coordinator()
    coordinator.slowest = 100
    pace = coordinator.pace(4)
    for number in range(8):
        assert pace.enter(HeldLease(1, 0, 0, 0), number, OVER) is not None
        pace.applied()
    assert coordinator.told == [0, 2, 4, 6, 8]


def test_a_trainer_that_had_no_work_goes_on_at_the_clock_of_the_others() -> None:
    coordinator = Coordinator()
    pace = coordinator.pace(2)
    assert len(begun(pace)) == 3
    applied(pace, 3)
    coordinator.mine = coordinator.slowest = 40  # others have trained meanwhile
    assert len(begun(pace, stream=2)) == 3
    assert coordinator.led[3:] == [0, 1, 2]
    applied(pace, 1)
    assert coordinator.told[-1] == 41


# --- geo


def test_a_window_begins_when_all_before_it_is_applied_and_within_it_batches_run_ahead() -> None:
    entered: list[int] = []
    windows: Any = SimpleNamespace(
        begins=lambda number: number % 3 == 0, batches_before=lambda number: number % 3, enter=entered.append
    )
    pace = GeoPace(7, windows)
    assert begun(pace) == [0, 1, 2]
    applied(pace, 2)
    assert begun(pace, first=3) == []
    applied(pace, 1)
    assert begun(pace, first=3) == [0, 1, 2]
    assert entered == [0, 1, 2, 3, 4, 5]
    long: Any = SimpleNamespace(begins=lambda number: number == 0, batches_before=int, enter=entered.append)
    assert begun(GeoPace(1, long)) == [0, 1]


TABLE = TableSpec("t", (PartSpec("v", 2, SGD(0.5), Constant(0.0)),))
DENSE = DenseSpec(3, SGD(1.0))


class Servers:
    """A client of servers whose rows are all 1 and whose dense parameters are 5; pushes are kept."""

    def __init__(self) -> None:
        self.pushes: list[tuple[dict[str, Any], np.ndarray]] = []

    def pull(self, keys: dict[str, np.ndarray], dense: bool, **_how: object) -> Any:
        rows = {"t": np.ones((keys["t"].size, 2), np.float32)}
        pulled = Pulled(rows, np.full(3 if dense else 0, 5, np.float32))
        return SimpleNamespace(wait=lambda: pulled)

    def push(self, rows: dict[str, Any], dense: np.ndarray, *_name: object, **_how: object) -> Any:
        self.pushes.append((rows, dense))
        return SimpleNamespace(on_done=lambda _call: None)


def batch_of(*keys: int) -> Batch:
    some = np.array(keys, np.uint64)
    return Batch(np.zeros(1, np.float32), np.empty((1, 0), np.float32), some, np.empty((1, 0), np.int32), {})


def test_a_window_sends_what_rows_have_moved_and_a_trainers_share_of_the_dense_parameters() -> None:
    servers: Any = Servers()
    copy = GeoCopy(TABLE, DENSE, rows_max=100)
    rows = GeoRows(servers, TABLE, copy, lambda _index: LeasePlan(0, 3), every=2, trainers=4)
    moment, batches = Moment(0, 0.0), [batch_of(7, 8), batch_of(8, 9), batch_of(9)]
    for number, batch in enumerate(batches):
        rows.enter(number)
        pulled = rows.pull(batch, moment).wait()
        ones, twos = np.ones((batch.keys.size, 2), np.float32), np.full(3, 2, np.float32)
        rows.push(ComputedBatch(batch, pulled, ones, twos, PushName(0, number, 0), moment))
    (window, last) = servers.pushes
    keys, moved = window[0]["t"]
    assert dict(zip(keys.tolist(), moved[:, 0].tolist(), strict=True)) == {7: -0.5, 8: -1.0, 9: -0.5}
    assert window[1].tolist() == [-1.0] * 3  # two steps of -2, of four trainers
    assert last[0]["t"][0].tolist() == [9]
    assert last[1].tolist() == [-0.5] * 3  # the lease ends within a window


def test_a_copy_lets_its_oldest_rows_go_when_more_have_state_than_it_may_have() -> None:
    copy = GeoCopy(TABLE, DENSE, rows_max=80)
    for first in range(0, 120, 10):
        keys = np.arange(first, first + 10, dtype=np.uint64)
        copy.store.push(keys, np.ones((10, 2), np.float32), now=first)
    copy.begin(np.zeros(3, np.float32))
    assert copy.store.rows == 60
    found = np.empty((60, 2), np.float32)
    assert copy.store.pull(np.arange(60, 120, dtype=np.uint64), found) == 0
    copy.begin(np.zeros(3, np.float32))
    assert copy.store.rows == 60


# --- the bound on staleness


class FillsOneArray(CountingModel):
    """Gives its gradients in arrays that each step fills anew."""

    def __init__(self) -> None:
        super().__init__()
        self._rows, self._dense = np.zeros((64, 1), np.float32), np.zeros(1, np.float32)

    def loss_and_gradients(self, batch: Any, rows: Any, dense: Any, step_seed: int) -> CountStep:
        step = super().loss_and_gradients(batch, rows, dense, step_seed)
        self._rows[:], self._dense[:] = 0, step.dense_gradients["examples"]
        gradient = self._rows[: batch.keys.size]
        gradient[:] = step.rows_gradient
        return CountStep(step.loss, step.logits, gradient, {"examples": self._dense})


def ahead(staleness: StalenessBound, batches: int) -> list[int]:
    """Return the allowed lead of each of the next batches."""
    found = []
    for _ in range(batches):
        found.append(staleness.now)
        staleness.batch_begun()
    return found


@given(bound=st.integers(0, 50), warmup=st.integers(0, 200))
def test_the_bound_rises_evenly_from_zero_in_the_mean_and_ends_where_it_should(bound, warmup):
    seen = ahead(StalenessBound(bound, warmup), warmup + 5)
    means = [bound * min(1.0, begun / warmup) if warmup else bound for begun in range(warmup + 5)]
    assert seen[0] == (0 if warmup else bound)
    assert seen[warmup:] == [bound] * 5
    assert all(abs(one - mean) < 1 for one, mean in zip(seen, means, strict=True))
    assert all(-1 < sum(seen[:end]) - sum(means[:end]) < 1e-6 for end in range(warmup))


def test_where_the_bound_is_a_fraction_those_that_run_ahead_lie_between_those_that_do_not():
    seen = "".join(map(str, ahead(StalenessBound(1, 300), 300)))
    assert "1" not in seen[:20]
    assert "11" not in seen[20:140]
    assert "00" not in seen[160:]


def test_without_warmup_the_whole_bound_holds_from_the_first_batch():
    assert StalenessBound(4, 0).now == 4


@pytest.mark.parametrize("staleness", [0, 2, 6])
def test_a_model_may_fill_the_same_arrays_in_every_step(staleness: int, tmp_path: Path) -> None:
    """Gradients are on their way while the next steps are computed."""
    data = write_examples(tmp_path / "a.parquet", 403)
    with pslib.connect() as cluster:
        trainer_on(cluster, FillsOneArray(), staleness=staleness, lease_rows=400).fit(data)
        assert counts_of(cluster, np.arange(403)).tolist() == [1.0] * 403
        assert examples_counted(cluster) == 403
