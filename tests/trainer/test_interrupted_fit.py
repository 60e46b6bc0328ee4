"""Ctrl-C in a script or notebook: the same call goes on after the batch, and every example counts once."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslib
from pslib.errors import PslibError
from tests.support.counting import CountingModel, write_examples
from tests.support.training import counts_of, examples_counted, trainer_on

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


@pytest.mark.parametrize("at", [1, 7, STEPS, STEPS + 3])
def test_what_was_trained_is_saved_and_another_process_goes_on_with_it(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_examples(tmp_path / "a.parquet", ROWS)
    place = tmp_path / "out" / "checkpoint-unfinished"
    with pslib.connect(servers=2) as cluster:
        trainer = trainer_on(cluster, interrupted_at(at), out=tmp_path / "out")
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(path, epochs=2)
    told = f"interrupted at example {at * BATCH_ROWS} of {2 * ROWS}; saved in {place}/checkpoint-"
    assert told in caplog.text
    with pslib.connect() as cluster:
        trainer = trainer_on(cluster, CountingModel())
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
