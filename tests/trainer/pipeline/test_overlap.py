"""Steps that overlap: each stage after the one before, outcomes in order, no idle thread beside work."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslib.trainer.pipeline import pipeline
from pslib.trainer.pipeline.compute import ModelThreads
from pslib.trainer.pipeline.overlap import SLOTS, OverlappedSteps
from rec_models import DeepFM
from tests.support.clusters import cluster_of
from tests.support.counting import SCHEMA as COUNTED
from tests.support.counting import write_examples
from tests.support.models.gradient_check import SCHEMA, make_batch, random
from tests.support.training import trainer_on
from tests.support.waiting import PATIENCE_S, WAIT_S, wait_until


@pytest.fixture
def steps() -> Iterator[OverlappedSteps]:
    started = OverlappedSteps(2)
    yield started
    started.close()


def fail(error: BaseException) -> None:
    raise error


def test_a_stage_begins_when_the_one_before_is_done_and_outcomes_keep_their_order(
    steps: OverlappedSteps,
) -> None:
    done: list[tuple[int, int]] = []
    outcomes: list[int] = []

    def stages(number: int, _slot: int) -> Generator[Sequence[partial[None]], None, int]:
        for stage, size in enumerate((3, 0, 1, 5)):
            assert sum(one == (number, before) for before in range(stage) for one in done) == sum(
                (3, 0, 1, 5)[:stage]
            )
            yield [partial(done.append, (number, stage))] * size
        return number

    for number in range(50):
        steps.begin(partial(stages, number), outcomes.append, fail)
    steps.finish()
    assert outcomes == list(range(50))
    assert len(done) == 50 * 9


def test_a_thread_with_nothing_to_do_for_a_step_begins_the_next_one(steps: OverlappedSteps) -> None:
    next_has_begun, outcomes = threading.Event(), queue.Queue[str]()

    def first(_slot: int) -> Generator[Sequence[partial[bool]], None, str]:
        yield [partial(next_has_begun.wait, PATIENCE_S)]
        return "first"

    def second(_slot: int) -> Generator[Sequence[object], None, str]:
        yield [next_has_begun.set]
        return "second"

    steps.begin(first, outcomes.put, fail)  # type: ignore[arg-type]
    steps.begin(second, outcomes.put, fail)  # type: ignore[arg-type]
    assert [outcomes.get(timeout=PATIENCE_S) for _ in range(2)] == ["first", "second"]
    assert next_has_begun.is_set()


def test_a_stage_of_two_tasks_wakes_two_threads(steps: OverlappedSteps) -> None:
    both, errors = threading.Barrier(2, timeout=PATIENCE_S / 6), list[BaseException]()

    def stages(_slot: int) -> Generator[Sequence[object], None, int]:
        yield [both.wait, both.wait]
        return 0

    def both_wait() -> bool:
        return len(steps._changed._waiters) == 2  # type: ignore[attr-defined]

    for _ in range(3):
        wait_until(both_wait, WAIT_S, "both threads to wait: else none need be woken", pause_s=0.001)
        steps.begin(stages, lambda _: None, errors.append)  # type: ignore[arg-type]
        steps.finish()
        assert errors == []


def test_a_slot_is_taken_by_one_step_at_a_time(steps: OverlappedSteps) -> None:
    taken: set[int] = set()

    def stages(slot: int) -> Generator[Sequence[partial[None]], None, int]:
        assert slot in range(SLOTS)
        assert slot not in taken
        taken.add(slot)
        yield [partial(int)] * 3
        return slot

    for _ in range(40):
        steps.begin(stages, taken.remove, fail)
    steps.finish()
    assert taken == set()


def test_an_error_of_a_task_is_heard_and_ends_all_steps(steps: OverlappedSteps) -> None:
    heard: queue.Queue[BaseException] = queue.Queue()

    def stages(_slot: int) -> Generator[Sequence[partial[float]], None, None]:
        yield [partial(divmod, 1, 0)]

    for _ in range(SLOTS + 2):  # none waits for a slot that is never free again
        steps.begin(stages, fail, heard.put)
    assert isinstance(heard.get(timeout=PATIENCE_S), ZeroDivisionError)
    steps.finish()


def test_a_wait_for_the_end_hears_of_an_error_before(steps: OverlappedSteps) -> None:
    """Else a fit whose last batch has failed could end as if nothing had happened."""
    finished, told = threading.Event(), queue.Queue[bool]()

    def stages(_slot: int) -> Generator[Sequence[partial[float]], None, None]:
        yield [partial(divmod, 1, 0)]

    steps.begin(stages, fail, lambda _error: told.put(finished.wait(0.2)))
    steps.finish()
    finished.set()
    assert not told.get(timeout=PATIENCE_S)


def test_a_model_has_the_same_bits_however_its_steps_overlap() -> None:
    model = DeepFM(SCHEMA, dim=4, hidden=(32, 32))
    cases = []
    for seed in range(12):
        batch = make_batch(seed=seed, rows=600, distinct=40)
        rows = random(batch.keys.size, model.table().dim).astype(np.float32)
        cases.append(
            (batch, rows, {n: random(*s).astype(np.float32) for n, s in model.dense_shapes().items()})
        )
    overlapped: list[bytes] = []
    with ModelThreads(model, 2, overlap=True) as threads:
        for number, case in enumerate(cases):
            threads.begin((*case, number), lambda step: overlapped.append(step.rows_gradient.tobytes()), fail)
        threads.finish()
    alone = [model.loss_and_gradients(*case, number) for number, case in enumerate(cases)]
    assert overlapped == [step.rows_gradient.tobytes() for step in alone]


def test_an_error_of_a_step_counts_more_than_being_asked_to_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the run would end as one that was preempted, and the error would be lost."""
    leave = type("Asked", (), {"asked": False, "left_s": 20.0, "finishing": contextlib.nullcontext})()

    class Fails(DeepFM):
        def forward(self, *_about: Any) -> Any:
            leave.asked = True
            raise ArithmeticError("of this step")

    monkeypatch.setattr(pipeline, "preemption", leave)
    model = Fails(COUNTED, dim=2, hidden=(4,))
    path = write_examples(tmp_path / "a.parquet", 200)
    with cluster_of() as running, pytest.raises(ArithmeticError, match="of this step"):
        trainer_on(running.join(), model, compute_threads=2, staleness=2).fit(path)  # type: ignore[arg-type]
