"""Ctrl-C in a script or notebook: the same call goes on after the batch, and every example counts once."""

from __future__ import annotations

import logging
import math
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import pslib
from pslib.errors import PslibError
from pslib.trainer.collective import Job
from tests.support.clusters import cluster_of
from tests.support.counting import CountingModel, write_examples
from tests.support.counting_trainers import StopError
from tests.support.training import (
    UNHURRIED,
    at_step,
    counts_of,
    examples_counted,
    held_until,
    trainer_on,
)
from tests.support.waiting import PATIENCE_S

ROWS, BATCH_ROWS = 200, 5
STEPS = ROWS // BATCH_ROWS


def interrupted_at(*steps: int, times: int = 1) -> CountingModel:
    """A model in whose batches of these numbers, from 1 on, Ctrl-C is pressed, once or more often."""
    begun = 0

    def look(batch: object, rows: object) -> None:
        nonlocal begun
        begun += 1
        if begun in steps:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return CountingModel(look)


def raises(error: type[BaseException]) -> Callable[..., None]:
    """A function that does nothing but this."""

    def function(*_arguments: object, **_named: object) -> None:
        raise error

    return function


class Presses(pslib.Callback):
    """Notes what it is called with; Ctrl-C is pressed at the end of an epoch, once."""

    def __init__(self, epoch: int) -> None:
        self.notes: list[tuple[str, Any]] = []
        self._epoch = epoch

    def on_epoch_end(self, trainer: Any, epoch: int, result: Any) -> None:
        self.notes.append(("epoch", epoch))
        if epoch == self._epoch:
            self._epoch = 0
            raise KeyboardInterrupt

    def on_evaluate(self, trainer: Any, name: str, result: Any) -> None:
        self.notes.append(("evaluate", name))

    def should_stop(self, trainer: Any) -> bool:
        self.notes.append(("stop?", ""))
        return False


def repeated(call: Callable[[], Any]) -> tuple[Any, int]:
    """Make a call until Ctrl-C ends it no more; return its result, and how often it was interrupted."""
    for interruptions in range(100):
        try:
            return call(), interruptions
        except KeyboardInterrupt:
            continue
    raise AssertionError("interrupted for ever")


def assert_counted(cluster: pslib.cluster.Cluster, epochs: int) -> None:
    assert set(counts_of(cluster, np.arange(ROWS)).tolist()) == {float(epochs)}
    assert examples_counted(cluster) == epochs * ROWS
    status = cluster.status()
    assert (status["examples"], status["epoch"]) == (epochs * ROWS, epochs)


@pytest.mark.parametrize(
    ("consistency", "staleness"),
    [("async", 0), ("async", 2), ("sync", 0), ("ssp", 0), ("ssp", 2), ("geo", 0), ("geo", 2)],
)
def test_the_same_call_goes_on_where_ctrl_c_has_ended_it(
    tmp_path: Path, consistency: str, staleness: int
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    moments = random.Random(consistency + str(staleness)).sample(range(1, 2 * STEPS), 5)
    how = {"consistency": consistency, "staleness": staleness}
    with pslib.connect(servers=2) as cluster:
        trainer = trainer_on(cluster, interrupted_at(*moments), **how)
        _, interruptions = repeated(lambda: trainer.fit(path, epochs=2))
        assert interruptions == 5
        assert_counted(cluster, 2)
        trainer.fit(path)  # another epoch, as after any call that is done
        assert_counted(cluster, 3)


def test_it_ends_after_the_batch_and_not_within_it(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(7))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path)
        assert examples_counted(cluster) == 7 * BATCH_ROWS
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_after_the_last_batch_nothing_is_left_to_go_on_with(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(STEPS))
        assert repeated(lambda: trainer.fit(path))[1] == 1
        assert_counted(cluster, 1)
        trainer.fit(path)
        assert_counted(cluster, 2)


def test_a_second_ctrl_c_ends_it_at_once_and_the_same_call_goes_on_too(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(7, 11, times=2), staleness=0)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path)
        assert examples_counted(cluster) == 6 * BATCH_ROWS
        assert repeated(lambda: trainer.fit(path))[1] == 1
        assert_counted(cluster, 1)


def test_a_look_and_a_save_may_come_in_between(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect(servers=2) as cluster:
        trainer = trainer_on(cluster, interrupted_at(7, 50, 61))
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                trainer.fit(path, epochs=2)
            assert cluster.status()["phase"] == "interrupted"
            assert trainer.evaluate(path).examples == ROWS
            trainer.save(tmp_path / "saved")
        trainer.fit(path, epochs=2)
        assert_counted(cluster, 2)


def test_a_fit_that_evaluates_returns_the_results_of_all_epochs(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    stopping = pslib.EarlyStopping(patience=9)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(5, STEPS + 5, 2 * STEPS + 5))
        results, interruptions = repeated(
            lambda: trainer.fit(path, epochs=3, valid=path, stopping=stopping, best=tmp_path / "best")
        )
        assert (len(results), interruptions) == (3, 3)
        fits = [one for one in cluster.status()["results"] if one["kind"] == "fit"]
        assert len(fits) == 3


def test_another_call_trains_anew_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(7))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path, epochs=2)
        with caplog.at_level(logging.WARNING):
            trainer.fit(path)
        assert "another call than the interrupted one" in caplog.text
        assert examples_counted(cluster) == 7 * BATCH_ROWS + ROWS


@pytest.mark.parametrize("consistency", ["async", "sync"])
@pytest.mark.parametrize("at", [1, 7, STEPS, STEPS + 3])
def test_what_was_trained_is_saved_and_another_process_goes_on_with_it(
    tmp_path: Path, at: int, consistency: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    place = tmp_path / "out" / "checkpoint-unfinished"
    with pslib.connect(servers=2) as cluster:
        trainer = trainer_on(cluster, interrupted_at(at), out=tmp_path / "out", consistency=consistency)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path, epochs=2)
    told = f"interrupted at example {at * BATCH_ROWS} of {2 * ROWS}; saved in {place}/checkpoint-"
    assert told in caplog.text
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, consistency=consistency)
        trainer.load(place)
        trainer.fit(path, epochs=2)
        assert_counted(cluster, 2)


def test_a_program_that_has_its_own_handler_of_sigint_keeps_it(tmp_path: Path) -> None:
    heard: list[int] = []
    path = write_examples(tmp_path / "a.parquet", ROWS)
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with pslib.connect() as cluster:
            trainer_on(cluster, interrupted_at(7)).fit(path)
            assert_counted(cluster, 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_a_call_that_is_refused_in_between_changes_nothing(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(STEPS + 7))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path, epochs=2, valid=path)
        with pytest.raises(PslibError):
            trainer.fit(tmp_path / "missing.parquet")
        assert len(trainer.fit(path, epochs=2, valid=path)) == 2
        assert_counted(cluster, 2)


# --- more than one Ctrl-C, and what comes in between


def test_a_second_ctrl_c_while_the_first_one_saves_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(7), out=tmp_path / "out")
        monkeypatch.setattr(trainer._cuts, "save_as_it_is", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path)
        trainer.evaluate(path)
        trainer.fit(path)
        assert_counted(cluster, 1)


def test_a_fit_that_was_given_up_meanwhile_begins_anew_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(7))
        with monkeypatch.context() as third:
            third.setattr(Job, "pause", lambda job: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                trainer.fit(path)
        trainer.evaluate(path)
        trainer.fit(path)
        assert "the interrupted fit was given up by a later call: its epoch begins anew" in caplog.text
        assert examples_counted(cluster) == 7 * BATCH_ROWS + ROWS


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopError])
def test_an_error_while_it_passes_over_done_epochs_loses_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(STEPS + 7))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path, epochs=2, valid=path)
        with monkeypatch.context() as early:
            early.setattr(trainer._history, "end", raises(error))
            with pytest.raises(error):
                trainer.fit(path, epochs=2, valid=path)
        assert len(trainer.fit(path, epochs=2, valid=path)) == 2
        assert_counted(cluster, 2)


def test_a_script_that_goes_on_from_a_checkpoint_may_be_interrupted_in_the_epochs_before(
    tmp_path: Path,
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(STEPS + 7), out=tmp_path / "out", callbacks=[Presses(0)])
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path, epochs=2, valid=path)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, callbacks=[Presses(1)])
        trainer.load(tmp_path / "out" / "checkpoint-unfinished")
        results, interruptions = repeated(lambda: trainer.fit(path, epochs=2, valid=path))
        assert (len(results), interruptions) == (2, 1)
        assert_counted(cluster, 2)


def test_an_interrupted_evaluation_is_given_up_when_the_fit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(7))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path)
        with monkeypatch.context() as patch:
            patch.setattr(CountingModel, "predict", raises(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                trainer.evaluate(path)
        assert cluster.status()["phase"] == "evaluating"
        trainer.fit(path)
        assert_counted(cluster, 1)
        assert cluster.status()["phase"].startswith("waiting for the next call")


# --- what is another call


@pytest.mark.parametrize(
    "change",
    [{"valid": "b.parquet"}, {"epochs": 1}, {"stopping": pslib.EarlyStopping(patience=3, restore=False)}],
    ids=lambda change: next(iter(change)),
)
def test_a_call_with_other_arguments_begins_anew_and_trains_each_of_its_epochs_once(
    tmp_path: Path, change: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, first in (("a.parquet", 0), ("b.parquet", ROWS)):
        write_examples(tmp_path / name, ROWS, first=first)
    given: dict[str, Any] = {"epochs": 2, "valid": "a.parquet"}
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(STEPS + 7))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit("a.parquet", **given)
        results = trainer.fit("a.parquet", **given | change)
        assert "another call than the interrupted one" in caplog.text
        assert len(results) == (given | change)["epochs"]
        assert trainer._epochs == 1 + len(results)
        assert examples_counted(cluster) == (1 + len(results)) * ROWS + 7 * BATCH_ROWS


def test_paths_and_tables_that_are_equal_make_the_same_call(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(STEPS + 7))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(pq.read_table(path), epochs=2, valid=path)
        trainer.fit(pq.read_table(path), epochs=2, valid=str(path))
        assert_counted(cluster, 2)


# --- records and callbacks


def test_epochs_that_are_passed_over_are_recorded_and_told_once(tmp_path: Path) -> None:
    path, presses = write_examples(tmp_path / "a.parquet", ROWS), Presses(2)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(STEPS + 7, 2 * STEPS + 7), callbacks=[presses])
        trainer.history.every_s = math.inf
        assert repeated(lambda: trainer.fit(path, epochs=3, valid=path))[1] == 3
        records = [one for one in trainer.history.records if one.event == "evaluation"]
        assert [(one.epoch, one.examples) for one in records] == [(n, n * ROWS) for n in (1, 2, 3)]
        assert trainer.history.records[-1].examples == 3 * ROWS
    told = [("evaluate", "valid"), ("epoch", 1), ("stop?", ""), ("evaluate", "valid"), ("epoch", 2)]
    told += [("epoch", 2), ("stop?", ""), ("evaluate", "valid"), ("epoch", 3)]  # the first one did not end
    assert presses.notes == told


def test_an_interrupt_between_two_epochs_is_told_what_goes_on_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, callbacks=[Presses(1)])
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path, epochs=2)
        assert caplog.messages == ["pslib: interrupted between two epochs; the same call goes on"]
        trainer.fit(path, epochs=2)
        assert_counted(cluster, 2)


@pytest.mark.parametrize("consistency", ["async", "sync"])
@pytest.mark.parametrize("where", ["the evaluation", "on_epoch_end"])
def test_an_interrupt_between_two_epochs_saves_and_another_process_goes_on_with_it(
    tmp_path: Path,
    where: str,
    consistency: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    place = tmp_path / "out" / "checkpoint-unfinished"
    with pslib.connect() as cluster, monkeypatch.context() as patch:
        if where == "the evaluation":
            patch.setattr(CountingModel, "predict", raises(KeyboardInterrupt))
        presses = Presses(1 if where == "on_epoch_end" else 0)
        how: dict[str, Any] = {"consistency": consistency, "callbacks": [presses]}
        trainer = trainer_on(cluster, out=tmp_path / "out", **how)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path, epochs=2, valid=path)
    assert f"interrupted between two epochs; saved in {place}/checkpoint-" in caplog.text
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, consistency=consistency, callbacks=[Presses(0)])
        trainer.load(place)
        assert len(trainer.fit(path, epochs=2, valid=path)) == 2
        assert_counted(cluster, 2)


# --- what can't go on


def test_a_stream_says_that_its_window_is_trained_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_examples(tmp_path / "a.parquet", ROWS)
    ends = pslib.StreamSettings(idle_s=0.01, poll_s=0.01)
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, interrupted_at(7))
        with pytest.raises(KeyboardInterrupt):
            list(trainer.fit_stream(tmp_path, ends))
        assert "of 200; fit_stream in this process trains this window anew" in caplog.text
        list(trainer.fit_stream(tmp_path, ends))
        assert examples_counted(cluster) == 7 * BATCH_ROWS + ROWS


def test_of_several_trainers_the_others_get_the_leases_of_one_that_catches_it(tmp_path: Path) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    interrupted, done = threading.Event(), threading.Event()

    def press() -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def catches(cluster: pslib.Cluster) -> None:
        with pytest.raises(KeyboardInterrupt):
            trainer_on(cluster, CountingModel(at_step(2, press))).fit(path)
        assert done.wait(PATIENCE_S)

    def other(cluster: pslib.Cluster) -> int:
        trainer_on(cluster, CountingModel(held_until(interrupted))).fit(path)
        done.set()
        return examples_counted(cluster)

    with cluster_of(trainers=2, timing=UNHURRIED) as running:
        assert running.results(other, catches)[0] == ROWS
